"""Four prediction services behind one address with one store on PostgreSQL; one of them is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import torch

import nvdp
from faults.postgres import MODEL, TASKS, Server
from faults.tally import Tally
from nvdp.store import TaskStore

LOST = (OSError, HTTPException)  # no answer, or half of one
SERVICE = Path(__file__).resolve().parent.parent / "examples" / "store_service.py"


def ask(port: int, route: str, **body: Any) -> dict[str, Any]:
    """The answer of whichever service takes the connection."""
    request = Request(
        f"http://127.0.0.1:{port}/{route}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def shared_address(services: int, clients: int, points: int) -> Tally:
    """Clients observe and predict through one address; a service is killed half-way and clients try again."""
    tally = Tally(
        f"{services} services behind one address, {clients} clients, one PostgreSQL store; a service is killed"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stored, unknown, by = Counter[str](), Counter[str](), Counter[int]()
    lock = threading.Lock()

    def client(number: int) -> None:
        for point in range(points):
            task, x = f"task {(number + point) % TASKS}", [[point % 40 / 10 - 2]]
            try:
                by[ask(port, "observe", task=task, x=x, y=[[0.1]])["by"]] += 1
                with lock:
                    stored[task] += 1
            except LOST:  # the service died with this request: it may have been stored or not
                with lock:
                    unknown[task] += 1
            with suppress(*LOST):
                by[ask(port, "predict", task=task, x=x)["by"]] += 1

    with Server() as server:
        command = [sys.executable, str(SERVICE), server.url, "--model", MODEL, "--port", str(port)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        running = [subprocess.Popen(command, env=environment) for _ in range(services)]
        try:
            _wait_for(port, {each.pid for each in running})
            threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
            for thread in threads:
                thread.start()
            while sum(stored.values()) < clients * points / 2:
                time.sleep(0.05)
            running[0].send_signal(signal.SIGKILL)
            for thread in threads:
                thread.join()
            _compare(tally, server.url, port, stored, unknown)
        finally:
            for each in running:
                each.terminate()
                each.wait()
    for each in running:
        tally.check(by[each.pid] > 0, "service answered", f"service {each.pid} answered nothing")
    return tally


def _wait_for(port: int, wanted: set[int]) -> None:
    """Until all services take connections."""
    seen: set[int] = set()
    for _ in range(2_000):
        with suppress(*LOST):
            seen.add(ask(port, "predict", task="none", x=[[0.0]])["by"])
        if seen == wanted:
            return
        time.sleep(0.05)
    raise AssertionError(f"{len(seen)} of {len(wanted)} services answer")


def _compare(tally: Tally, url: str, port: int, stored: Counter[str], unknown: Counter[str]) -> None:
    """Counts of the store, and answers of the services beside the library's own."""
    with TaskStore(url, nvdp.load(MODEL)) as store:
        for task in sorted(stored):
            seen, least = store.count(task), stored[task]
            good = least <= seen <= least + unknown[task]
            tally.check(good, "task has all acknowledged points", f"{task}: {seen} there, {least} acknowledged")
            x = [[-1.0], [0.5]]
            ours, theirs = store.predict(task, x).mean, ask(port, "predict", task=task, x=x)["mean"]
            good = torch.allclose(ours, torch.tensor(theirs), atol=1e-6)
            tally.check(good, "answer of a service is the library's", f"{task}: {ours} and {theirs}")
    tally.saw("acknowledged point is in the store", sum(stored.values()))
    tally.saw("request lost with the killed service, told to its client", sum(unknown.values()))
