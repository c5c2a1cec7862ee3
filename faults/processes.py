"""One run in several processes: the same numbers as in one, and a process that is killed ends it with a reason."""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from faults.runs import SMALL, TINY, state_of
from faults.tally import Tally
from nvdp.models.config import ModelConfig
from nvdp.models.registry import MODELS, model_spec
from nvdp.training.checkpoint import checkpoint_paths
from nvdp.training.config import RunConfig
from nvdp.training.run import Machine, train
from nvdp.training.run_folder import CHECKPOINTS, start_run

PRECISION = "64-true"  # so that a difference is an error, and not rounding that Adam has made large
TOLERANCE = 1e-7
NAMES = [name for name, spec in MODELS.items() if "regression" in spec.tasks]
SHARED = replace(TINY, steps=20, tasks_per_step=12)
Tensors = dict[str, torch.Tensor]


def config_of(name: str) -> RunConfig:
    """A short run of a model."""
    model = ModelConfig(name).updated({"encoder.task_norm": name == "nvdp", **SMALL})  # type: ignore[arg-type]
    return replace(SHARED, model=model, objective=model_spec(name).objective)


def difference(ours: Tensors, theirs: Tensors) -> float:
    """The largest between two states; infinite if they are not of one kind."""
    if ours.keys() != theirs.keys():
        return float("inf")
    return max((ours[name].double() - theirs[name].double()).abs().max().item() for name in ours)


def alone(config: RunConfig, folder: Path, devices: int = 1) -> Tensors:
    """The state that a run comes to, or is resumed to, in so many processes."""
    train(config, folder, resume=True, machine=Machine("cpu", devices, PRECISION, threads=1))
    return state_of(folder)


def shared_runs(place: Path, names: list[str], three: bool = False) -> Tally:
    """Each model trained by one process and by two, one also by `three`, with as many tasks a step in all."""
    tally = Tally(f"one run shared by 2{' or 3' if three else ''} processes (gloo), each regression model")
    largest = 0.0
    for name in names:
        expected = alone(config_of(name), place / f"{name}-1")
        for count in (2, 3) if three and name == "nvdp" else (2,):
            apart = difference(alone(config_of(name), place / f"{name}-{count}", count), expected)
            largest = max(largest, apart)
            tally.check(apart <= TOLERANCE, "the weights of one process, up to rounding", f"{name}, {count}: {apart}")
    tally.numbers = {"largest_difference": largest, "tolerance": TOLERANCE, "precision": PRECISION}
    return tally


def started_by_torchrun(place: Path, nodes: int = 1) -> Tally:
    """Two processes that torchrun has started: on one node, or on two nodes of this machine that find each other."""
    tally = Tally(f"one run shared by 2 processes that torchrun has started on {nodes} node{'s' * (nodes > 1)}")
    folder = place / f"torchrun-{nodes}"
    expected = alone(SHARED, place / "without-torchrun")
    start_run(folder, SHARED, resume=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), *meeting]
    command = [*launcher, "--nproc-per-node", str(2 // nodes), "-m", *_command(folder, 1)]
    started = [
        subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=_environment())
        for _ in range(nodes)
    ]
    for node in started:
        said = node.communicate()[1]
        if node.returncode:
            tally.failed(said[-500:])
    if not tally.wrong:
        apart = difference(state_of(folder), expected)
        tally.check(apart <= TOLERANCE, "the weights of one process, up to rounding", f"differs by {apart}")
    return tally


def killed_members(place: Path, times: int) -> Tally:
    """SIGKILL to one of two processes in the middle of a run, which then goes on in one or in three."""
    tally = Tally("SIGKILL to one of the 2 processes of a run, which then goes on in 1 or 3")
    config = replace(SHARED, steps=120, checkpoint_every=10)
    expected = alone(config, place / "never-killed") if times else {}
    for number in range(times):
        folder = place / f"shared-{number}"
        start_run(folder, config, resume=False)
        main = subprocess.Popen(
            [sys.executable, "-m", *_command(folder, 2)], stderr=subprocess.PIPE, text=True, env=_environment()
        )
        while main.poll() is None and len(checkpoint_paths(folder / CHECKPOINTS)) < 2:
            time.sleep(0.05)
        members = _members(main.pid)
        if main.poll() is None and members:
            os.kill(members[number % len(members)], signal.SIGKILL)
        said = (main.communicate()[1] or "").strip().splitlines()
        told = main.returncode == 2 and "and the run with it; --resume" in said[-1]
        tally.check(told, "ended with code 2 and a line", f"{number}: code {main.returncode}, {said[-1:]}")
        apart = difference(alone(config, folder, (1, 3)[number % 2]), expected)
        tally.check(apart <= 1e-4, "resumed, weights as if undisturbed", f"{number}: differs by {apart}")
    return tally


def _command(folder: Path, devices: int) -> list[str]:
    run = ["nvdp", "train", "gp", "--resume", "--out", str(folder), "--devices", str(devices)]
    return [*run, "--device", "cpu", "--precision", PRECISION, "--threads", "1", "--quiet"]


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def _members(main: int) -> list[int]:
    """The processes that share a run: forked by a server that the first one has started."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
    servers = {pid for pid, parent in parents.items() if parent == main}
    return sorted(pid for pid, parent in parents.items() if parent in servers)
