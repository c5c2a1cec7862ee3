"""Single steps of the loop: which are skipped, their learning rate, and numbers that are almost zero."""

import csv
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from nvdp.errors import InputError
from nvdp.training import loop as trainer
from nvdp.training.config import RunConfig
from nvdp.training.loop import Trainer, learning_rate_at
from nvdp.training.optimizers import build_optimizer
from nvdp.training.run import Machine, train
from nvdp.training.run_folder import load_run


@pytest.fixture
def short(config):
    """Six steps, of which every second has a row in the log."""
    return replace(config, steps=6, log_every=2)


def logged(config, folder):
    """The log of a run."""
    train(config, folder, machine=Machine(device="cpu", threads=1))
    with (folder / "log.csv").open() as file:
        return list(csv.DictReader(file))


def broken_step(monkeypatch, steps, spoil):
    """Let `spoil` change the numbers of the given training steps."""
    forward, count = trainer.TrainingStep.forward, iter(range(10_000))

    def spoiled(self, *args):
        numbers = forward(self, *args)
        return numbers | {"bound": spoil(numbers["bound"], self)} if next(count) in steps else numbers

    monkeypatch.setattr(trainer.TrainingStep, "forward", spoiled)


def test_a_step_with_a_bound_that_is_not_finite_is_skipped_and_counted(tmp_path, short, monkeypatch):
    broken_step(monkeypatch, {2}, lambda bound, _: bound * math.nan)
    rows = logged(short, tmp_path)
    assert [row["skipped"] for row in rows] == ["0", "1", "1"]
    assert all(math.isfinite(float(value)) for row in rows for value in row.values())


@pytest.mark.parametrize("gradient_clip", [None, 1.0])
def test_a_step_with_a_gradient_that_is_not_finite_is_skipped_too(tmp_path, short, monkeypatch, gradient_clip):
    def infinite_slope(bound, step):
        zero = next(step.model.parameters()).sum() * 0
        return bound + zero.abs().sqrt()

    broken_step(monkeypatch, {2}, infinite_slope)
    rows = logged(replace(short, gradient_clip=gradient_clip), tmp_path)
    assert [row["skipped"] for row in rows] == ["0", "1", "1"]
    assert all(torch.isfinite(p).all() for p in load_run(tmp_path)[1].parameters())


def test_a_run_whose_bound_is_never_finite_gives_up(tmp_path, short, monkeypatch):
    monkeypatch.setattr(trainer, "MOST_SKIPPED", 3)
    broken_step(monkeypatch, set(range(10)), lambda bound, _: bound * math.inf)
    with pytest.raises(InputError, match="4 of 4 steps had a bound"):
        logged(short, tmp_path)


@pytest.mark.parametrize(
    ("schedule", "warmup", "step", "expected"),
    [
        ("constant", 0, 0, 1.0),
        ("constant", 0, 99, 1.0),
        ("constant", 10, 0, 0.1),
        ("constant", 10, 9, 1.0),
        ("cosine", 0, 0, 1.0),
        ("cosine", 0, 50, 0.5),
        ("cosine", 0, 25, 0.5 * (1 + math.sqrt(0.5))),
        ("cosine", 20, 9, 0.5),
        ("cosine", 20, 20, 1.0),
        ("cosine", 20, 60, 0.5),
        ("cosine", 20, 100, 0.0),
        ("cosine", 20, 140, 0.0),
    ],
)
def test_the_learning_rate_warms_up_then_stays_or_falls_along_a_cosine(schedule, warmup, step, expected):
    config = RunConfig(steps=100, learning_rate=1.0, schedule=schedule, warmup_steps=warmup)
    assert learning_rate_at(config, step) == pytest.approx(expected)


def test_the_log_shows_the_learning_rate_that_was_used(tmp_path, short):
    rows = logged(short, tmp_path)
    used = [learning_rate_at(short, int(row["step"]) - 1) for row in rows]
    assert [float(row["learning_rate"]) for row in rows] == pytest.approx(used, rel=1e-5)


def test_steps_take_the_smallest_numbers_as_zero_and_leave_the_callers_setting_alone():
    seen = []

    class Bound(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self):
            seen.append((torch.tensor([1e-40]) * 1).item())
            return {"bound": -self.weight.square().sum()}

    module = Bound()
    Trainer(
        RunConfig(steps=1), module, module, build_optimizer("adam", module.parameters(), 0.1), lambda step: ()
    ).take_step()
    assert seen == [0.0]
    assert (torch.tensor([1e-40]) * 1).item() > 0
