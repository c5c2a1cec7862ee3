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

import nvdp
from faults.processes import started_by_torchrun
from faults.ray_nodes import PORT, end, start_node
from faults.tally import Tally

ADDRESS = f"127.0.0.1:{PORT}"
MODEL, FILES = "gp-nvdp", 20
COLUMNS = ("--task", "tree", "--x", "day", "--y", "size")


def two_nodes(place: Path, tasks: int) -> list[Tally]:
    """Predictions of many tasks on two Ray nodes, one of which is killed; one run on two nodes of torchrun."""
    nodes = [start_node(place, head=True), start_node(place, head=False)]
    try:
        found = killed_while_predicting(place, tasks, nodes[1])
    finally:
        end(nodes)
    return [found, started_by_torchrun(place, 2)]


def killed_while_predicting(place: Path, tasks: int, node: "subprocess.Popen[bytes]") -> Tally:
    """`nvdp predict --executor ray`; the node is killed when a few parts are done."""
    tally = Tally(f"nvdp predict --executor ray for {tasks:,} tasks on two Ray nodes, one of which is killed")
    random, (given, at, out) = np.random.default_rng(0), (place / name for name in ("contexts", "at", "predictions"))
    for folder, rows in ((given, 3), (at, 5)):
        folder.mkdir()
        for file in range(FILES):
            names = np.repeat(np.arange(file * tasks // FILES, (file + 1) * tasks // FILES), rows)
            table = pd.DataFrame({"tree": names, "day": random.uniform(-2, 2, len(names))})
            table.assign(size=np.sin(table["day"] + table["tree"])).to_parquet(folder / f"{file}.parquet")
    began, places = time.monotonic(), ["--context", str(given), "--at", str(at), "--out", str(out)]
    command = [sys.executable, "-m", "nvdp", "predict", MODEL, *COLUMNS, *places, "--executor", "ray"]
    with (place / "said.txt").open("w+") as said:
        process = subprocess.Popen(
            [*command, "--address", ADDRESS], stdout=said, stderr=said, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        while process.poll() is None and len(list(place.glob(".predictions.*/part-*.parquet"))) < 3:
            time.sleep(0.1)
        running = process.poll() is None
        end([node])
        code = process.wait()
        said.seek(0)
        lines = said.read().strip().splitlines() or [""]
    tally.numbers["tasks_per_second"] = round(tasks / (time.monotonic() - began))
    tally.check(running, "one node killed while both predicted", "all was done before the node was killed")
    tally.check(code == 0, f"done: {5 * tasks:,} predictions", " ".join(lines)[-500:])
    if code:
        return tally
    answers, context = pd.read_parquet(out), pd.read_parquet(given)
    asked = pd.read_parquet(at).sort_values(["tree", "day"])
    found = answers.sort_values(["tree", "day"])
    same = found[["tree", "day"]].to_numpy().tolist() == asked[["tree", "day"]].to_numpy().tolist()
    tally.check(same and bool(found["mean"].notna().all()), "every row is predicted once", f"{len(found)} rows")
    predictor = nvdp.load(MODEL)
    for tree in random.choice(tasks, 50, replace=False):
        own, rows = context[context["tree"] == tree], found[found["tree"] == tree]
        posterior = predictor.adapt(own[["day"]].to_numpy(), own[["size"]].to_numpy())
        expected = posterior.predict(rows[["day"]].to_numpy()).mean[:, 0].numpy()
        apart = float(np.abs(rows["mean"].to_numpy() - expected).max())
        tally.check(apart < 1e-4, "answer is the library's", f"task {tree} differs by {apart}")
    return tally
