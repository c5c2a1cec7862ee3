"""Visitors of `nvdp serve` who are slow, go away or ask for too much; others are answered, and the server ends in time.

All requests go to 127.0.0.1.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from faults.tally import Tally

PATIENCE = 120.0  # seconds for anything: the machine may be busy
QUESTION = {"model": "exact-gp", "x": [[0.5]], "y": [[0.2]], "query": [[0.1 * i] for i in range(20)], "samples": 2}
DEAR = {
    "model": "gp",
    "x": [[i / 128 - 2] for i in range(512)],
    "y": [[0.1]] * 512,
    "query": [[i / 128 - 2] for i in range(512)],
    "samples": 16,
}


def _hear_ctrl_c() -> None:
    """In the new process: a shell lets its background jobs ignore SIGINT, and they pass that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def serving(log: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """A server on a free port: its process, host and port; what it says on standard error goes to `log`."""
    command = [sys.executable, "-m", "nvdp", "serve", "--port", "0", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, preexec_fn=_hear_ctrl_c
        ) as process,
    ):
        assert process.stdout is not None
        try:
            place = urlsplit(process.stdout.readline().split()[3])
            yield process, str(place.hostname), int(place.port or 0)
        finally:
            process.kill()


def ask(host: str, port: int, question: dict[str, Any] = QUESTION, **headers: str) -> tuple[int, float]:
    """The status of an answer and the seconds that it took."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
    try:
        connection.request("POST", "/api/adapt", json.dumps(question), {"Content-Type": "application/json"} | headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, time.monotonic() - began
    finally:
        connection.close()


def send(host: str, port: int, data: bytes) -> socket.socket:
    """A connection on which these bytes were sent."""
    connection = socket.create_connection((host, port), PATIENCE)
    connection.sendall(data)
    return connection


def post(question: dict[str, Any]) -> bytes:
    """A request as bytes."""
    body = json.dumps(question).encode()
    head = "POST /api/adapt HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


HALF_HEADER = b"POST /api/adapt HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
HALF_BODY = post(DEAR)[:-5]


def memory_mb(process: int) -> float:
    """Resident memory of a process."""
    with Path(f"/proc/{process}/status").open() as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


def slow_clients(place: Path, connections: int) -> Tally:
    """Half-sent headers and half-sent bodies, while others ask."""
    tally = Tally(f"{connections} half-sent headers, then {connections} half-sent bodies, while another visitor asks")
    place.mkdir(parents=True, exist_ok=True)
    log = place / "slow.log"
    with serving(log) as (process, host, port):
        ask(host, port)
        before = memory_mb(process.pid)
        for name, half in (("headers", HALF_HEADER), ("bodies", HALF_BODY)):
            held: list[socket.socket] = []
            for _ in range(connections):
                with suppress(OSError):
                    held.append(send(host, port, half))
            _expect(tally, lambda: ask(host, port)[0] == 200, "another visitor is answered meanwhile", name)
            grown = memory_mb(process.pid) - before
            tally.check(grown < 150, "memory grew by less than 150 MB", f"{name}: {grown:.0f} MB more")
            tally.numbers[f"mb_more_with_half_{name}"] = round(grown)
            ended = sum(_is_closed(connection) for connection in held)
            tally.check(ended == len(held), "all were closed by the server", f"{name}: {len(held) - ended} stay open")
            _expect(tally, lambda: ask(host, port)[0] == 200, "another visitor is answered afterwards", name)
    size = log.stat().st_size
    tally.check(size < 10_000, "the server's log stays short", f"{size} bytes of log: {log.read_text()[:200]}")
    return tally


def abandoned_work(place: Path, requests: int) -> Tally:
    """Visitors who send dear work and go away before it is done."""
    tally = Tally(f"{requests} visitors send dear work and go away; others ask")
    place.mkdir(parents=True, exist_ok=True)
    with serving(place / "abandoned.log") as (_, host, port):
        ask(host, port)
        for _ in range(requests):
            send(host, port, post(DEAR)).close()
        status, cheap = ask(host, port)
        tally.check(status == 200, "the next cheap request is answered", f"status {status}")
        while (answer := ask(host, port, DEAR))[0] == 503 and cheap < PATIENCE:
            cheap += answer[1]
        status, seconds = answer
        tally.check(status == 200 and seconds < 20, "the next dear request does not wait for them", f"{answer}")
        tally.numbers |= {"next_cheap_seconds": round(cheap, 2), "next_dear_seconds": round(seconds, 2)}
    return tally


def too_much_work(place: Path, requests: int) -> Tally:
    """More dear work at once than the queue takes: the rest is told to come again, and cheap work goes on."""
    tally = Tally(f"one visitor sends {requests} dear requests at once")
    place.mkdir(parents=True, exist_ok=True)
    with serving(place / "much.log") as (_, host, port):
        ask(host, port)
        held = [send(host, port, post(DEAR)) for _ in range(requests)]
        _expect(tally, lambda: ask(host, port)[0] == 200, "a cheap request is answered meanwhile", "cheap")
        for connection in held:
            answer = connection.recv(4_000).decode("latin-1")
            retry = " 503 " in answer.splitlines()[0] and "retry-after" in answer.lower()
            told = "told to try again later (503, Retry-After)" if retry else "answered"
            tally.check(retry or " 200 " in answer.splitlines()[0], told, answer[:80])
            connection.close()
    return tally


def stopped_servers(place: Path, rounds: int) -> Tally:
    """SIGTERM and SIGINT while a request is half sent, and while much work is queued."""
    tally = Tally("SIGTERM and Ctrl-C while requests are half sent, and while dear work is queued")
    place.mkdir(parents=True, exist_ok=True)
    slowest = 0.0
    for turn in range(rounds):
        for number in (signal.SIGTERM, signal.SIGINT):
            for name, half in (("half-sent header", HALF_HEADER), ("half-sent body", HALF_BODY), ("work", post(DEAR))):
                log = place / "stopped.log"
                with serving(log) as (process, host, port):
                    held = [send(host, port, half) for _ in range(8 if name == "work" else 2)]
                    time.sleep(0.3 * turn + 0.3)
                    began = time.monotonic()
                    process.send_signal(number)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(PATIENCE)
                    seconds = time.monotonic() - began
                    slowest = max(slowest, seconds)
                    for connection in held:
                        connection.close()
                good = process.returncode is not None and seconds < 30 and "Traceback" not in log.read_text()
                tally.check(good, "ended in time, without a traceback", f"{name}, {number.name}: {seconds:.0f} s")
    tally.numbers["slowest_seconds"] = round(slowest, 1)
    return tally


def other_hosts(place: Path) -> Tally:
    """Requests under names that are not this server's, and a second server on one port."""
    tally = Tally("requests under foreign host names (DNS rebinding); a second server on a busy port")
    place.mkdir(parents=True, exist_ok=True)
    with serving(place / "hosts.log", "--allow-host", "lab.example") as (_, host, port):
        for name, expected in (
            ("127.0.0.1", 200), ("localhost", 200), (f"localhost:{port}", 200), ("[::1]", 200), ("lab.example", 200),
            ("evil.example", 421), ("127.0.0.1.evil.example", 421), ("localhost.evil.example:80", 421),
        ):  # fmt: skip
            status = ask(host, port, Host=name)[0]
            outcome = "answered, as it is ours" if status == 200 else "refused"
            tally.check(status == expected, outcome, f"{name}: {status}")
        second = [sys.executable, "-m", "nvdp", "serve", "--port", str(port)]
        said = subprocess.run(second, capture_output=True, text=True, timeout=10 * PATIENCE)
        good = said.returncode == 2 and len(said.stderr.splitlines()) == 1
        tally.check(good, "the second server says so in one line", said.stderr[-300:])
    return tally


def _expect(tally: Tally, action: Any, outcome: str, name: str) -> None:
    try:
        tally.check(action(), outcome, f"{name}: not {outcome}")
    except OSError as error:
        tally.failed(f"{name}: {error!r}")


def _is_closed(connection: socket.socket) -> bool:
    """Whether the server ends a connection within its time for a request."""
    connection.settimeout(PATIENCE)
    try:
        while connection.recv(4_000):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    finally:
        connection.close()
    return True
