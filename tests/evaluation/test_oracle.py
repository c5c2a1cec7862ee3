"""The exact posterior by the paper's formula: E log p over its functions."""

import pytest
import torch
from torch.distributions import Normal

from nvdp.data.gp import NOISE
from nvdp.data.registry import task_source
from nvdp.data.source import validation_tasks
from nvdp.evaluation.metrics import OF_FUNCTIONS, task_means
from nvdp.evaluation.oracle import OracleScores
from nvdp.models.config import ModelConfig


def test_the_oracles_functions_are_scored_as_if_they_were_sampled(generator):
    (tasks,) = validation_tasks(task_source("gp"), 1, 4)
    oracle = OracleScores(ModelConfig())
    oracle.watch(tasks, torch.zeros_like(tasks.y))
    exact, sigma = tasks.oracle(), ModelConfig().likelihood.min_std
    std = (exact.stds[0].square() - NOISE**2).clamp(min=0).sqrt()
    drawn = exact.functions[0] + std * torch.randn(20_000, *std.shape, generator=generator)
    sampled = Normal(drawn, sigma).log_prob(tasks.y.double()).mean(0)
    result = oracle.result()
    wanted = task_means(sampled, tasks.mask).mean().item()
    assert result[f"oracle_{OF_FUNCTIONS}"]["LL"] == pytest.approx(wanted, abs=0.02)
    assert result[f"oracle_{OF_FUNCTIONS}"]["LL"] < result["oracle"]["LL"]
