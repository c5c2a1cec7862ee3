"""Queues of runs on a Ray cluster of two nodes of this machine, one of which is killed in the middle.

Ray prefers an address that others can reach. To keep all of it on 127.0.0.1, have no other:
``unshare --net sh -c 'ip link set lo up; python -m faults cluster'``.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from faults.runs import TINY, same, state_of
from faults.tally import Tally
from nvdp.experiments.executors import run_on_ray
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.experiments.queue import run_queue, steps_done
from nvdp.experiments.results import result_path

PORT = 6399
RAY = [str(Path(sys.executable).with_name("ray")), "start", "--node-ip-address=127.0.0.1", "--num-cpus=1"]
REPRODUCE = [sys.executable, "-m", "nvdp", "reproduce", "table1", "--budget", "quick", "--only", "vp-learned"]
RUNS, COMPARED = 2, "np+vp-learned"
SMALL_NODE = ["--object-store-memory=80000000", "--disable-usage-stats"]


def killed_node(place: Path, steps: int = 400) -> Tally:
    """Two runs on two nodes of one CPU each; one node is killed, its run is retried on the other."""
    tally = Tally("a node of a Ray cluster of two killed in the middle of its run")
    config = replace(TINY, steps=steps, checkpoint_every=50, log_every=50)
    plan = [PlannedRun(f"run-{seed}", replace(config, seed=seed), tasks=2) for seed in range(2)]
    experiment = Experiment("table1", "two runs", lambda budget: plan)
    runs, out = place / "ray-runs", place / "ray-results"
    nodes = [start_node(place, head=True), start_node(place, head=False)]
    killed: list[int] = []

    def kill_when_both_run() -> None:
        while not all(steps_done(run.folder(runs)) > steps // 6 for run in plan):
            time.sleep(0.2)
        killed.append(sum(steps_done(run.folder(runs)) for run in plan))
        os.killpg(nodes[1].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_when_both_run, daemon=True)
    killer.start()
    try:
        run_queue(
            experiment, "quick", out, runs, jobs=1, device="cpu",
            executor=lambda *order: run_on_ray(*order, address=f"127.0.0.1:{PORT}"),
        )  # fmt: skip
    finally:
        end(nodes)
    tally.check(bool(killed), "one node killed while both ran", "no node was killed")
    local = Experiment("table1", "two runs", lambda budget: plan)
    run_queue(local, "quick", place / "local-results", place / "local-runs", jobs=1, device="cpu")
    for run in plan:
        equal = same(state_of(run.folder(runs)), state_of(run.folder(place / "local-runs")))
        tally.check(equal, "run done; weights equal to the last bit", f"{run.name}: other weights")
        ours, theirs = (
            json.loads(result_path(folder, "table1", "quick", run.name).read_text())["evaluation"]
            for folder in (out, place / "local-results")
        )
        tally.check(ours == theirs, "scores equal", f"{run.name}: other scores")
    return tally


def reproduced(place: Path) -> Tally:
    """The command of docs/scale.md for many runs; a node is killed while both train, the other one goes on."""
    tally = Tally("`nvdp reproduce --executor ray --address` on two Ray nodes, one killed while both train")
    runs, out = place / "shared-runs", place / "shared-results"
    nodes = [start_node(place, head=True), start_node(place, head=False)]
    where = ["--executor", "ray", "--address", f"127.0.0.1:{PORT}", "--runs", str(runs), "--out", str(out)]
    started = subprocess.Popen([*REPRODUCE, *where], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        while started.poll() is None and not nodes[1].returncode:
            begun = [log for log in runs.rglob("log.csv") if steps_done(log.parent)]
            if len(begun) - len(list(out.rglob("*.json"))) >= 2:  # a node has one CPU, so each trains one
                os.killpg(nodes[1].pid, signal.SIGKILL)
                nodes[1].wait()
            time.sleep(0.1)
        said = started.communicate()[1]
        tally.check(nodes[1].poll() is not None, "a node was killed while both trained", "no node was killed")
        tally.check(started.returncode == 0, "the command ended well", said[-500:])
        results = {file.stem.removeprefix("quick-"): file for file in out.rglob("*.json")}
        tally.check(len(results) == RUNS, f"all {RUNS} runs have a result", f"{len(results)} of {RUNS}")
        before = {name: file.stat().st_mtime_ns for name, file in results.items()}
        again = subprocess.run([*REPRODUCE, *where], capture_output=True, text=True)
        after = {name: file.stat().st_mtime_ns for name, file in results.items()}
        tally.check(again.returncode == 0 and before == after, "no run is repeated", again.stderr[-500:])
    finally:
        end(nodes)
    here = ["--runs", str(place / "here-runs"), "--out", str(place / "here-results")]
    subprocess.run([*REPRODUCE[:-1], COMPARED, *here], check=True, capture_output=True)
    (alone,) = (place / "here-results").rglob("*.json")
    ours, theirs = (json.loads(file.read_text())["evaluation"] for file in (results[COMPARED], alone))
    tally.check(ours == theirs, f"scores of {COMPARED} are those of one machine", "other scores")
    return tally


def end(nodes: "list[subprocess.Popen[bytes]]") -> None:
    """SIGKILL to all processes of the nodes."""
    for node in nodes:
        try:
            os.killpg(node.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        node.wait()


def start_node(place: Path, head: bool) -> "subprocess.Popen[bytes]":
    """A node in a process group of its own, which can be killed as a machine would be."""
    where = (
        ["--head", "--include-dashboard=false", f"--port={PORT}", f"--temp-dir=/tmp/nvdp-ray-{os.getpid()}"]
        if head
        else [f"--address=127.0.0.1:{PORT}"]
    )
    path = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "180",
        "RAY_agent_register_timeout_ms": "300000",
        "PYTHONPATH": path,
    }
    log = (place / f"node-{'head' if head else 'other'}.log").open("wb")
    node = subprocess.Popen(
        [*RAY, *where, *SMALL_NODE, "--block"], stdout=log, stderr=log, env=environment, start_new_session=True
    )
    for _ in range(300):
        time.sleep(1.0)
        said = Path(log.name).read_text()
        if node.poll() is not None:
            raise RuntimeError(said[-2000:])
        if "Ray runtime started" in said:
            return node
    raise RuntimeError(f"the node does not start: {said[-2000:]}")
