"""docs/scale.md on two nodes of this machine: predictions by Ray Data, one run by torchrun.

`faults.ray_nodes` has a queue of runs on Ray, and how to keep Ray on 127.0.0.1.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import nvdp
from faults.processes import started_by_torchrun
from faults.ray_nodes import PORT, end, start_node
from faults.tally import Tally

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "predict_on_ray.py"
ADDRESS = f"127.0.0.1:{PORT}"
MODEL, FILES = "gp-nvdp", 20


def two_nodes(place: Path, tasks: int) -> list[Tally]:
    """Predictions of many tasks on two Ray nodes; one run on two nodes of torchrun."""
    nodes = [start_node(place, head=True), start_node(place, head=False)]
    try:
        found = _predictions(place, tasks)
    finally:
        end(nodes)
    return [found, started_by_torchrun(place, 2)]


def _predictions(place: Path, tasks: int) -> Tally:
    tally = Tally(f"predictions of {tasks:,} tasks with Ray Data on two Ray nodes")
    random, (given, out) = np.random.default_rng(0), (place / "tasks", place / "predictions")
    given.mkdir()
    for file in range(FILES):
        names = range(file * tasks // FILES, (file + 1) * tasks // FILES)
        sizes = random.integers(1, 6, len(names))
        lists = {key: [random.uniform(-2, 2, size) for size in sizes] for key in "xy"}
        pd.DataFrame({"task": list(names), **lists}).to_parquet(given / f"{file}.parquet")
    began = time.monotonic()
    ends = ["--low", "-2", "--high", "2", "--points", "5", "--address", ADDRESS]
    done = _run([sys.executable, str(EXAMPLE), MODEL, str(given), str(out), *ends])
    tally.numbers["tasks_per_second"] = round(tasks / (time.monotonic() - began))
    told = done.stdout.strip().replace(str(out), "a folder").rpartition("\n")[2]
    tally.check(done.returncode == 0, told, done.stderr[-500:])
    if done.returncode:
        return tally
    answers = pd.read_parquet(out).set_index("task")
    tally.check(sorted(answers.index) == list(range(tasks)), "every task is answered once", f"{len(answers)} answers")
    asked, predictor, at = pd.read_parquet(given).set_index("task"), nvdp.load(MODEL), torch.linspace(-2, 2, 5)[:, None]
    for task in random.choice(tasks, 50, replace=False):
        x, y = (torch.tensor(asked.loc[task, key]).float()[:, None] for key in "xy")
        apart = np.abs(answers.loc[task, "mean"] - predictor.adapt(x, y).predict(at).mean[:, 0].numpy()).max()
        tally.check(bool(apart < 1e-4), "answer is the library's", f"task {task} differs by {apart}")
    return tally


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
