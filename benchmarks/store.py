"""Cost of a store of many tasks: bytes per task, and observations and predictions per second, singly and in batches.

    python benchmarks/store.py --both --tasks 1000000 --seconds 5 --most-minutes 10 --json results/bench/store.json

The store is filled with four points per task, in batches of 1,000 tasks. Then random tasks are observed and predicted,
singly and in batches. Rates are per second of wall time and per second of CPU time. --most-minutes limits the filling.
The model is `gp-nvdp`, with 512 sums per task. --both measures a file and a PostgreSQL server of this machine; `--only`
measures one of them and keeps the row of the other in the file of --json.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch

import nvdp
from nvdp.store import TaskStore, store_stats
from nvdp.system import use_threads

POINTS, QUERIES, BATCH = 4, 10, 1_000
STORES = ("SQLite", "PostgreSQL")


def rates(name: str, call: Callable[[], object], each: int, seconds: float) -> dict[str, float]:
    """Tasks a second, over at least two calls and about so many seconds, after one call to warm up."""
    call()
    calls, began, began_cpu = 0, time.perf_counter(), time.process_time()
    while calls < 2 or time.perf_counter() - began < seconds:
        call()
        calls += 1
    wall, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    return {f"{name}_per_second": round(calls * each / wall, 1), f"{name}_per_cpu_second": round(calls * each / cpu, 1)}


def measure(
    path: Path | str, tasks: int, seconds: float, power_safe: bool, most_minutes: float
) -> dict[str, float | bool]:
    """Fill a store and time it."""
    choose, generator = random.Random(0), torch.Generator().manual_seed(0)
    x, y = torch.rand(BATCH, POINTS, 1, generator=generator) * 4 - 2, torch.randn(BATCH, POINTS, 1, generator=generator)
    at = torch.linspace(-2, 2, QUERIES)[:, None]
    with TaskStore(path, nvdp.load("gp-nvdp"), power_safe) as store:
        began, began_cpu = time.perf_counter(), time.process_time()
        for start in range(0, tasks, BATCH):
            size = min(BATCH, tasks - start)
            store.observe_many([f"task-{start + i}" for i in range(size)], list(x[:size]), list(y[:size]))
            if time.perf_counter() - began > 60 * most_minutes:
                tasks = start + size
                break
        speeds = {
            "fill_per_second": round(tasks / (time.perf_counter() - began), 1),
            "fill_per_cpu_second": round(tasks / (time.process_time() - began_cpu), 1),
        }

        def one() -> str:
            return f"task-{choose.randrange(tasks)}"

        def many() -> list[str]:
            return [one() for _ in range(BATCH)]

        speeds |= rates("observe", lambda: store.observe(one(), x[0], y[0]), 1, seconds)
        speeds |= rates("predict", lambda: store.predict(one(), at), 1, seconds)
        speeds |= rates("observe_batched", lambda: store.observe_many(many(), list(x), list(y)), BATCH, seconds)
        speeds |= rates("predict_batched", lambda: store.predict_many(many(), at), BATCH, seconds)
    return {**store_stats(path), **speeds, "power_safe": power_safe}


def both(only: str | None, tasks: int, seconds: float, most_minutes: float, json_file: Path | None) -> None:
    """The same on a file and on a server."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from faults.postgres import Server

    kept = json_file is not None and json_file.exists() and only is not None
    found = json.loads(json_file.read_text())["stores"] if kept else {}
    for name in STORES if only is None else [only]:
        with tempfile.TemporaryDirectory() as folder, Server() if name == "PostgreSQL" else nullcontext() as server:
            place = server.url if server else Path(folder) / "tasks.db"
            found[name] = measure(place, tasks, seconds, False, most_minutes) | {"load": os.getloadavg()[0]}
    record = {"cores": os.cpu_count() or 1, "batch": BATCH, "stores": {n: found[n] for n in STORES if n in found}}
    text = json.dumps(record, indent=1)
    print(text)
    if json_file is not None:
        json_file.write_text(text + "\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="where the store is made and removed (default: a temporary one)")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each of the four timings")
    parser.add_argument("--most-minutes", type=float, default=5.0, help="for filling the store")
    parser.add_argument("--power-safe", action="store_true", help="wait for the disk at each transaction")
    parser.add_argument("--both", action="store_true", help="a file, and a PostgreSQL server that is started for it")
    parser.add_argument("--only", choices=STORES, help="of --both")
    arguments = parser.parse_args()
    use_threads()
    if arguments.both or arguments.only:
        both(arguments.only, arguments.tasks, arguments.seconds, arguments.most_minutes, arguments.json)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path, before = Path(folder) / "tasks.db", os.getloadavg()[0]
        result = measure(path, arguments.tasks, arguments.seconds, arguments.power_safe, arguments.most_minutes)
    result |= {"tasks_asked_for": arguments.tasks, "points_a_task": POINTS, "query_points": QUERIES, "batch": BATCH}
    result |= {"cores": os.cpu_count() or 1, "load_before": before, "load_after": os.getloadavg()[0]}
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
