"""Seconds until `nvdp` does something: its help, its import, its first model, its page. And those of the demo.

    python benchmarks/start.py --json results/bench/start.json

Each line is a process of its own, in turns, after one round that is not measured. The demo is that of `make demo`
without its installation; --without-demo leaves it out and keeps what the file has. Each row has its commit and
processor; all have one thread.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import nvdp
from nvdp.bench.timing import machine
from nvdp.evaluation.metrics import OF_FUNCTIONS
from nvdp.system import source_commit, write_text

MODULE = [sys.executable, "-m", "nvdp"]
COMMANDS = {
    "nvdp --version": [*MODULE, "--version"],
    "nvdp --help": [*MODULE, "--help"],
    "import torch": [sys.executable, "-c", "import torch"],
    "import nvdp": [sys.executable, "-c", "import nvdp"],
    "import nvdp, with torch": [sys.executable, "-c", "import nvdp; nvdp.ModelConfig"],
    'nvdp.load("gp")': [sys.executable, "-c", "import nvdp; nvdp.load('gp')"],
}
KEPT = ("model", "steps", "tasks", "scores", OF_FUNCTIONS, "attainable")
SERVE, SCORED = "nvdp serve", 2_048  # until its first answer
ALONE = os.environ | {"OMP_NUM_THREADS": "1"}


def ended(command: list[str]) -> float:
    """Seconds until a process has ended."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=ALONE)
    return time.perf_counter() - began


def answered() -> float:
    """Seconds from `nvdp serve` to the first answer of its API."""
    began = time.perf_counter()
    with subprocess.Popen([*MODULE, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True, env=ALONE) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[3]
        with urlopen(f"{address.rstrip('/')}/api/models") as answer:
            answer.read()
        taken = time.perf_counter() - began
        process.terminate()
    return taken


def starts(rounds: int) -> list[dict[str, Any]]:
    """Medians of the seconds of each line."""
    ways: dict[str, Callable[[], float]] = {
        **{name: lambda command=command: ended(command) for name, command in COMMANDS.items()},  # type: ignore[misc]
        SERVE: answered,
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            seconds = way()
            if turn:
                taken[name].append(seconds)
    return [{"what": name, "seconds": statistics.median(each), "rounds": rounds} for name, each in taken.items()]


def demo() -> dict[str, Any]:
    """The scores and the processor seconds of the demo's training, on more tasks than it scores."""
    with TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        train = [*MODULE, "train", "gp", "--model", "nvdp-conv", "--preset", "quick", "--out", run]
        subprocess.run(train, check=True, capture_output=True, env=ALONE)
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        score = [*MODULE, "eval", run, "--tasks", str(SCORED), "--json"]
        found = json.loads(subprocess.run(score, check=True, capture_output=True, text=True, env=ALONE).stdout)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    about = {"what": "demo", "seconds": wall, "processor_seconds": used}
    return about | {name: found[name] for name in KEPT}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--without-demo", action="store_true")
    parser.add_argument("--json", type=Path, help="the file to write")
    options = parser.parse_args()
    own = {"commit": source_commit() or nvdp.__version__, "processor": machine(False)["processor"]}
    rows = [row | own for row in starts(options.rounds)]
    if not options.without_demo:
        rows.append(demo() | own)
    elif options.json and options.json.exists():
        rows += [row for row in json.loads(options.json.read_text())["rows"] if row["what"] == "demo"]
    print(json.dumps(rows, indent=1))
    if options.json:
        write_text(options.json, json.dumps({"suite": "start", "rows": rows}, indent=1) + "\n")
        print(f"wrote {options.json}")


if __name__ == "__main__":
    main()
