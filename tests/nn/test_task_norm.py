"""Normalisation over tasks: statistics of the context, running averages afterwards, nothing changed by looking."""

import pytest
import torch

from nvdp.data.gp import GPTasks
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.nn.task_norm import TaskNorm

SMALL = {"width": 16, "layers": 2, "representation": 16, "encoder_layers": 2, "rate_width": 16, "rate_layers": 1}


@pytest.fixture
def model():
    return build_model(ModelConfig("nvdp", task_norm=True, **SMALL))


def test_a_training_batch_has_mean_zero_and_variance_one():
    r = 3 + 5 * torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    (normal,) = TaskNorm(4)(r)
    torch.testing.assert_close(normal.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.var(0, correction=0), torch.ones(4), atol=1e-4, rtol=0)


def test_the_whole_task_is_seen_with_the_context_s_eyes():
    context, whole = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(1))
    norm = TaskNorm(3)
    seen, other = norm(context, whole)
    torch.testing.assert_close(other - seen, (whole - context) / (context.var(0, correction=0) + 1e-5).sqrt())


def test_running_averages_are_those_of_the_batches_seen():
    generator, norm = torch.Generator().manual_seed(2), TaskNorm(2)
    batches = [torch.randn(16, 2, generator=generator) for _ in range(10)]
    for batch in batches:
        norm(batch)
    torch.testing.assert_close(norm.mean, torch.stack(batches).mean((0, 1)))
    frozen = norm.eval().mean.clone()
    norm(torch.full((4, 2), 100.0))
    assert torch.equal(norm.mean, frozen)


def test_one_task_alone_is_normalised_by_the_running_averages():
    norm = TaskNorm(2)
    r = torch.tensor([[1.0, -2.0]])
    torch.testing.assert_close(norm(r)[0], r, rtol=1e-4, atol=0)
    assert not norm.mean.any()


def test_evaluation_depends_on_the_own_context_alone(model):
    tasks = GPTasks().training_batch(0, 0, 6)
    model.adapt_both(tasks)  # a training step's look: averages move
    model.eval()
    together = model.adapt(tasks.context).mean_rates()
    alone = torch.cat([model.adapt(tasks.first(k + 1).context).mean_rates()[k:] for k in range(6)])
    torch.testing.assert_close(together, alone)


def test_rates_depend_more_on_the_context_than_without(model):
    plain = build_model(ModelConfig("nvdp", **SMALL))
    tasks = GPTasks().training_batch(0, 0, 32)

    def differences(one):
        q, _ = one.adapt_both(tasks)
        return torch.stack([layer.columns.std(0).mean() for layer in q.rates]).mean()

    assert differences(model) > 3 * differences(plain)


def test_averages_are_saved_with_the_weights(model):
    model.adapt_both(GPTasks().training_batch(0, 0, 4))
    twin = build_model(model.config, seed=9)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin.task_norm.variance, model.task_norm.variance)
