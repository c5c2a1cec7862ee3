"""A fit keeps the weights that predict held-out tasks best, ends with its time, and gives up if it cannot learn."""

import math
from dataclasses import replace

import pytest
import torch

from nvdp.data.gp import GPTasks
from nvdp.errors import InputError
from nvdp.training import early_stopping, loop
from nvdp.training.config import RunConfig
from nvdp.training.early_stopping import Candidate, fit_best, held_out_score


@pytest.fixture
def config(small_config):
    return RunConfig(model=small_config("cnp"), objective="likelihood", steps=80, tasks_per_step=4, learning_rate=1e-2)


def fit(config, score, **options):
    return fit_best([Candidate("only", config, GPTasks())], score, **options)


def test_the_weights_with_the_best_score_are_kept(config):
    weights, scores = [], iter([1.0, 3.0, 2.0] + [0.0] * 100)

    def score(model):
        weights.append([parameter.clone() for parameter in model.parameters()])
        return next(scores)

    outcome = fit(config, score)
    assert (outcome.score, outcome.best_step) == (3.0, 4)
    assert all(torch.equal(a, b) for a, b in zip(outcome.model.parameters(), weights[1], strict=True))
    assert len(weights) == 2 + early_stopping.PATIENCE
    assert outcome.steps < config.steps


def test_held_out_tasks_choose_between_candidates(config):
    held_out = GPTasks().validation_chunk(1, 0)
    slow = replace(config, learning_rate=1e-9)
    outcome = fit_best(
        [Candidate("slow", slow, GPTasks()), Candidate("fast", config, GPTasks())], held_out_score([held_out])
    )
    assert outcome.recipe == "fast"
    assert outcome.tried["fast"] > outcome.tried["slow"]
    assert outcome.config == config


def test_a_fit_ends_with_its_time_and_takes_at_least_one_step(config):
    endless = replace(config, steps=10**9)
    assert fit(endless, lambda model: 0.0, seconds=0.0).steps == 1
    outcome = fit(endless, lambda model: 0.0, seconds=0.5)
    assert 1 < outcome.steps < 10_000


def test_a_fit_without_finite_steps_gives_up(config, monkeypatch):
    forward = loop.TrainingStep.forward
    monkeypatch.setattr(
        loop.TrainingStep, "forward", lambda *a: forward(*a) | {"bound": torch.tensor(math.nan, requires_grad=True)}
    )
    with pytest.raises(InputError, match=r"(\d+) of \1 steps had a bound or gradient that is not finite"):
        fit(config, lambda model: 0.0)
