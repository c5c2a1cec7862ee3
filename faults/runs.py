"""A run so small that it is over in a second, in this process or in one that may be killed."""

import json
import multiprocessing
import os
import shutil
import signal
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.objectives import KLScale
from nvdp.training.checkpoint import checkpoint_paths, load_newest_checkpoint
from nvdp.training.config import RunConfig
from nvdp.training.run import Machine, Outcome, train
from nvdp.training.run_folder import CHECKPOINTS, load_run

SMALL = {
    "decoder.width": 8,
    "decoder.layers": 2,
    "encoder.size": 8,
    "encoder.layers": 2,
    "rates.width": 8,
    "rates.layers": 2,
    "decoder.latent": 4,
    "attention.width": 8,
    "attention.blocks": 2,
    "attention.heads": 2,
    "convolution.cells": 11,
    "convolution.channels": 4,
    "convolution.blocks": 1,
    "convolution.kernel": 3,
}
TINY = RunConfig(
    model=ModelConfig("nvdp").updated({"encoder.task_norm": True, **SMALL}),  # type: ignore[arg-type]
    kl=KLScale("elbo", 0.1),
    steps=60,
    tasks_per_step=4,
    learning_rate=1e-2,
    warmup_steps=5,
    gradient_clip=1.0,
    log_every=7,
    checkpoint_every=5,
)


def run(config: RunConfig, folder: Path, devices: int = 1, resume: bool = True) -> Outcome:
    """Train, or go on training, on CPU with one thread a process."""
    return train(config, folder, resume=resume, machine=Machine(device="cpu", devices=devices, threads=1))


def start(config: RunConfig, folder: Path, devices: int = 1) -> BaseProcess:
    """The same in a process of its own, quickly: a server that has imported everything forks it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["nvdp.training.run"])
    process = context.Process(target=_run, args=(config.to_json(), str(folder), devices))
    process.start()
    return process


def _run(config: str, folder: str, devices: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file too large is an error to report, not a death
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a dying process says is of no interest here
    try:
        run(RunConfig.from_dict(json.loads(config)), Path(folder), devices)
    except (InputError, OSError):
        raise SystemExit(2) from None


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    """All that a finished run has come to: its weights, and everything in its newest checkpoint."""
    checkpoint = load_newest_checkpoint(folder / CHECKPOINTS)[0]
    assert checkpoint is not None
    weights = {f"weights/{name}": tensor for name, tensor in load_run(folder)[1].state_dict().items()}
    return checkpoint.tensors | weights


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    """Equal to the last bit."""
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def store_run(folder: Path) -> None:
    """Make the run that tests keep for later versions: a checkpoint of its first half, and its final weights.

    Only to be called before a release: python -c "from faults.runs import *; store_run(Path('tests/trust/run_0_2'))"
    """
    config = replace(TINY, steps=12, checkpoint_every=6)
    run(config, folder)
    checkpoint_paths(folder / CHECKPOINTS)[-1].unlink()
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)
