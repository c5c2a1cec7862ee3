"""A store on a PostgreSQL server of its own: many writers, kills of writers, kills of the server; nothing is lost."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import nvdp
from faults.tally import Tally
from nvdp.errors import InputError
from nvdp.store import TaskStore

MODEL = "gp-nvdp"
TASKS = 7  # few, so that writers meet
# Observes numbered points until it is killed or told to stop, and says after each that it was acknowledged.
WRITER = """
import sys, time, nvdp
from nvdp.store import TaskStore
url, model, number, points, tasks = *sys.argv[1:3], *map(int, sys.argv[3:])
store = None
for point in range(points):
    task = f"task {(number + point) % tasks}"
    try:
        store = store or TaskStore(url, nvdp.load(model))
        store.observe(task, [point % 40 / 10 - 2], [0.1])
        print("stored", task, flush=True)
    except nvdp.InputError:
        print("unknown", task, flush=True)  # the server died: it may have been stored or not
        time.sleep(0.05)
"""


def binaries() -> Path | None:
    """Where the programs of a PostgreSQL server are, if there is one on this machine."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


class Server:
    """A PostgreSQL server with a new database, on a free port of this machine."""

    def __init__(self) -> None:
        place = binaries()
        assert place is not None, "no PostgreSQL server: apt-get install postgresql"
        # Not below a test's own folder, which another user may not enter.
        self._binaries, self.folder = place, Path(tempfile.mkdtemp(prefix="nvdp-postgres-"))
        folder = self.folder
        # A server refuses to run as root.
        self._user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}
        if self._user:
            shutil.chown(folder, "nobody", "nogroup")
        command = [str(place / "initdb"), "--pgdata", str(folder / "data"), "--username=nvdp", "--auth=trust"]
        subprocess.run(
            [*command, "--no-sync", "--encoding=UTF8", "--locale=C"], check=True, capture_output=True, **self._user
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()

    @property
    def url(self) -> str:
        """The database."""
        return f"postgresql://nvdp@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start, and wait until it answers."""
        settings = ["listen_addresses=127.0.0.1", f"port={self.port}", f"unix_socket_directories={self.folder}"]
        command = [str(self._binaries / "postgres"), "-D", str(self.folder / "data")]
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            [*command, *(part for each in settings for part in ("-c", each))], stderr=log, stdout=log, **self._user
        )
        log.close()
        from nvdp.store.postgres import connect, driver

        for _ in range(600):
            with suppress(driver().OperationalError), connect(self.url):
                return
            assert self.process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.1)
        raise AssertionError("the server does not answer")

    def kill(self) -> None:
        """SIGKILL to the server; its other processes end when they notice."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def restart(self) -> None:
        """Start again after a kill, as soon as the processes of the old one are gone."""
        for attempt in range(100):
            try:
                self.start()
            except AssertionError:
                if attempt == 99:
                    raise
                time.sleep(0.1)
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)  # a fast shutdown
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def writers(url: str, count: int, points: int) -> list[subprocess.Popen[str]]:
    """Processes that observe points of the same few tasks."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, url, MODEL, str(number), str(points), str(TASKS)],
            stdout=subprocess.PIPE, text=True, env=environment,
        )
        for number in range(count)
    ]  # fmt: skip


def acknowledged(process: "subprocess.Popen[str]") -> tuple[dict[str, int], dict[str, int]]:
    """Points of each task that a writer was told are stored, and those of which it does not know."""
    stored: dict[str, int] = {}
    unknown: dict[str, int] = {}
    for line in process.communicate()[0].splitlines():
        kind, _, task = line.partition(" ")
        into = stored if kind == "stored" else unknown
        into[task] = into.get(task, 0) + 1
    return stored, unknown


def lost_or_invented(url: str, outcomes: list[tuple[dict[str, int], dict[str, int]]], in_flight: int) -> list[str]:
    """What is wrong with a store after writers have ended; each may have had `in_flight` unacknowledged points."""
    wrong = []
    with TaskStore(url, nvdp.load(MODEL)) as store:
        total = 0
        for task in (f"task {number}" for number in range(TASKS)):
            least = sum(stored.get(task, 0) for stored, _ in outcomes)
            most = least + sum(unknown.get(task, 0) for _, unknown in outcomes) + in_flight
            seen, total = store.count(task), total + store.count(task)
            if not least <= seen <= most:
                wrong.append(f"{task}: {seen} points are there; {least} were acknowledged, {most} begun")
        begun = sum(sum(stored.values()) + sum(unknown.values()) for stored, unknown in outcomes) + in_flight
        if total > begun:
            wrong.append(f"{total} points are there; {begun} were begun")
    return wrong


def many_writers(server: Server, count: int, points: int) -> Tally:
    """Several processes write points of the same tasks."""
    tally = Tally(f"{count} processes at once observe points of the same {TASKS} tasks on PostgreSQL")
    outcomes = [acknowledged(each) for each in writers(server.url, count, points)]
    done = sum(sum(stored.values()) for stored, _ in outcomes)
    tally.check(done == count * points, "every writer was told that all is stored", f"{done} of {count * points}")
    wrong = lost_or_invented(server.url, outcomes, 0)
    tally.wrong += wrong
    tally.saw("acknowledged point is in the store, once", done - len(wrong))
    return tally


def killed_writers(server: Server, count: int, points: int) -> Tally:
    """SIGKILL to half of the writers while they write."""
    tally = Tally("SIGKILL to half of the writers on PostgreSQL")
    running = writers(server.url, count, points)
    _wait_for_points(server.url)
    for process in running[::2]:
        time.sleep(random.Random(process.pid).random() / 2)
        process.kill()
    outcomes = [acknowledged(each) for each in running]
    for number, process in enumerate(running):
        tally.check(
            (process.returncode == -signal.SIGKILL) == (number % 2 == 0),
            "writer killed, or not disturbed", f"writer {number} ended with {process.returncode}",
        )  # fmt: skip
    wrong = lost_or_invented(server.url, outcomes, len(running[::2]))
    tally.wrong += wrong
    tally.saw("acknowledged point is in the store", sum(sum(s.values()) for s, _ in outcomes) - len(wrong))
    return tally


def killed_server(server: Server, count: int, points: int, times: int) -> Tally:
    """SIGKILL to the server while several processes write; they go on when it is back."""
    tally = Tally(f"SIGKILL to the PostgreSQL server while {count} processes write; they go on when it is back")
    running = writers(server.url, count, points)
    _wait_for_points(server.url)
    for _ in range(times):
        time.sleep(0.5)
        server.kill()
        server.restart()
        tally.saw("server killed and restarted")
    outcomes = [acknowledged(each) for each in running]
    tally.check(all(each.returncode == 0 for each in running), "all writers went on to their end", "a writer died")
    wrong = lost_or_invented(server.url, outcomes, 0)
    tally.wrong += wrong
    tally.saw("acknowledged point is in the store", sum(sum(s.values()) for s, _ in outcomes) - len(wrong))
    return tally


def _wait_for_points(url: str) -> None:
    with TaskStore(url, nvdp.load(MODEL)) as store:
        before = sum(store.count(f"task {number}") for number in range(TASKS))
        for _ in range(600):
            time.sleep(0.05)
            with suppress(InputError):
                if sum(store.count(f"task {number}") for number in range(TASKS)) > before + 5:
                    return


def on_servers(count: int, points: int, kills: int) -> list[Tally]:
    """All of the above, each on a server of its own."""
    tallies = []
    for run in (many_writers, killed_writers):
        with Server() as server:
            tallies.append(run(server, count, points))
    with Server() as server:
        tallies.append(killed_server(server, count, points, kills))
    return tallies
