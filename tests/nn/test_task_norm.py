"""Normalisation over tasks: statistics of the context, running averages afterwards, nothing changed by looking."""

import pytest
import torch

from nvdp.data.gp import GPTasks
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.nn.task_norm import TaskNorm

SMALL = {
    "decoder.width": 16,
    "decoder.layers": 2,
    "encoder.size": 16,
    "encoder.layers": 2,
    "rates.width": 16,
    "rates.layers": 1,
}


@pytest.fixture
def model():
    return build_model(ModelConfig("nvdp").updated({"encoder.task_norm": True, **SMALL}))


def test_the_first_training_batch_has_mean_zero_and_variance_one():
    r = 3 + 5 * torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    (normal,) = TaskNorm(4)(r)
    torch.testing.assert_close(normal.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.var(0, correction=0), torch.ones(4), atol=1e-4, rtol=0)


def test_values_move_from_the_batch_s_statistics_to_the_running_averages(monkeypatch):
    generator, norm = torch.Generator().manual_seed(3), TaskNorm(2)
    for _ in range(5):
        norm(torch.randn(16, 2, generator=generator))
    r = 1 + torch.randn(16, 2, generator=generator)
    own = (r - r.mean(0)) / (r.var(0, correction=0) + 1e-5).sqrt()
    assert (norm(r)[0] - own).abs().max() < 0.02
    monkeypatch.setattr("nvdp.nn.task_norm.RAMP", 1)
    torch.testing.assert_close(norm(r)[0], (r - norm.mean) / (norm.variance + 1e-5).sqrt())


@pytest.mark.parametrize("ramp", [1, 1_000])
def test_what_all_tasks_share_has_no_gradient(monkeypatch, ramp):
    monkeypatch.setattr("nvdp.nn.task_norm.RAMP", ramp)
    generator, norm = torch.Generator().manual_seed(4), TaskNorm(2)
    r, other = (1 + torch.randn(2, 16, 2, generator=generator)).requires_grad_()
    for normal, given in zip(norm(r, other), (r, other), strict=True):
        (gradient,) = torch.autograd.grad((normal * torch.randn(16, 2, generator=generator)).sum(), given)
        torch.testing.assert_close(gradient.sum(0), torch.zeros(2), atol=1e-5, rtol=0)
        assert gradient.abs().max() > 0.1


def test_equal_sets_stay_equal():
    r = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    context, whole = TaskNorm(3)(r, r.clone())
    assert torch.equal(context, whole)


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
    plain = build_model(ModelConfig("nvdp").updated(SMALL))
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


def test_a_batch_that_is_not_finite_leaves_the_averages_alone():
    norm = TaskNorm(2)
    norm(torch.randn(8, 2, generator=torch.Generator().manual_seed(0)))
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    norm(torch.tensor([[float("nan"), 1.0], [2.0, 3.0]]))
    assert all(torch.equal(buffer, before[name]) for name, buffer in norm.named_buffers())


def test_an_empty_context_is_the_average_task(model):
    model.adapt_both(GPTasks().training_batch(0, 0, 16))
    model.eval()
    empty = model.adapt(torch.zeros(0, 1), torch.zeros(0, 1))
    average = model.posterior(torch.zeros(1, model.encoder.size))
    torch.testing.assert_close(empty.mean_rates(), average.mean_rates())
