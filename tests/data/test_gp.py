import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from nvdp.data import gp
from nvdp.data.gp import GPTaskBatch, GPTasks, rbf_kernel
from nvdp.data.source import validation_tasks
from nvdp.evaluation.metrics import RunningMoments, task_means
from nvdp.nn.likelihoods import gaussian_log_prob

SOURCE = GPTasks()


@pytest.fixture(scope="module")
def validation():
    return list(validation_tasks(SOURCE, seed=0, tasks=512))


def oracle_scores(batches, **options):
    """LL, RLL and PLL of the oracle over batches."""
    moments = {name: RunningMoments() for name in ("whole", "context", "target")}
    for batch in batches:
        prediction = batch.oracle(**options)
        log_prob = gaussian_log_prob(batch.y, prediction.mean, prediction.std)
        for name, total in moments.items():
            total.add(task_means(log_prob, getattr(batch, name).mask))
    return [total.mean for total in moments.values()]


def tensors(batch):
    return [batch.x, batch.y, batch.is_context, batch.mask, batch.length_scale, batch.signal_scale]


def test_the_covariance_of_many_draws_is_the_kernel_plus_noise(monkeypatch):
    draws = 20_000
    monkeypatch.setattr(gp, "VALIDATION_CHUNK", draws)
    monkeypatch.setattr(gp, "GRID_POINTS", 6)
    monkeypatch.setattr(gp, "CONTEXT_SIZES", (1, 5))
    monkeypatch.setattr(gp, "LENGTH_SCALES", (0.6, 0.6))
    monkeypatch.setattr(gp, "SIGNAL_SCALES", (0.7, 0.7))
    y = SOURCE.validation_chunk(0, 0).y[..., 0].double()
    x = torch.linspace(-2, 2, 6, dtype=torch.float64)
    expected = 0.49 * torch.exp(-0.5 * ((x[:, None] - x) / 0.6) ** 2) + 4e-4 * torch.eye(6).double()
    variance = expected.diagonal()
    error = ((variance[:, None] * variance + expected**2) / draws).sqrt()
    assert ((y.T @ y / draws - expected).abs() < 4.5 * error).all()
    assert (y.mean(0).abs() < 4.5 * (variance / draws).sqrt()).all()


def test_training_functions_are_white_under_their_own_kernel():
    moments = RunningMoments()
    for step in range(20):
        batch = SOURCE.training_batch(0, step, 16)
        covariance = batch.kernel(batch.x.double(), batch.x.double())
        covariance += gp.NOISE**2 * torch.eye(batch.x.shape[1])
        factor = torch.linalg.cholesky(covariance)
        moments.add(torch.linalg.solve_triangular(factor, batch.y.double(), upper=False).square())
    assert moments.mean == pytest.approx(1, abs=4.5 * math.sqrt(2 / moments.count))


def test_the_kernel_is_the_radial_basis_function():
    x = torch.tensor([[[0.0], [0.3]]], dtype=torch.float64)
    k = rbf_kernel(x, x, torch.tensor([0.3]), torch.tensor([0.5]))
    expected = torch.tensor([[[1.0, math.exp(-0.5)], [math.exp(-0.5), 1.0]]], dtype=torch.float64) / 4
    torch.testing.assert_close(k, expected, atol=1e-7, rtol=0)


@pytest.mark.parametrize("task", [0, 5, 11])
def test_the_oracle_is_the_gaussian_conditional_of_the_joint(task):
    batch = SOURCE.validation_chunk(3, 0).first(12)
    prediction = batch.oracle()
    x, y = batch.x[task, :, 0].double(), batch.y[task, :, 0].double()
    context = batch.is_context[task]
    length, signal = batch.length_scale[task], batch.signal_scale[task]
    k = signal**2 * torch.exp(-0.5 * ((x[:, None] - x) / length) ** 2)
    inverse = torch.linalg.inv(k[context][:, context] + gp.NOISE**2 * torch.eye(int(context.sum())))
    mean = k[:, context] @ inverse @ y[context]
    variance = k.diagonal() - (k[:, context] @ inverse * k[:, context]).sum(-1) + gp.NOISE**2
    torch.testing.assert_close(prediction.mean[task, :, 0], mean, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(prediction.std[task, :, 0], variance.sqrt(), atol=1e-6, rtol=1e-6)


def test_the_oracles_density_of_one_target_is_a_ratio_of_joint_densities():
    batch = SOURCE.training_batch(0, 1, 4)
    log_prob = batch.oracle().log_prob(batch.y.double())[:, :, 0]
    for task in range(4):
        target = int(batch.target.mask[task].nonzero()[0])
        context = batch.is_context[task].nonzero()[:, 0].tolist()

        def joint(points, task=task):
            x = batch.x[task : task + 1, points].double()
            covariance = rbf_kernel(x, x, batch.length_scale[[task]], batch.signal_scale[[task]])[0]
            covariance += gp.NOISE**2 * torch.eye(len(points))
            normal = MultivariateNormal(torch.zeros(len(points)).double(), covariance)
            return normal.log_prob(batch.y[task, points, 0].double())

        torch.testing.assert_close(
            log_prob[task, target], joint([*context, target]) - joint(context), atol=1e-5, rtol=1e-5
        )


def test_without_a_context_the_oracle_is_the_prior():
    batch = SOURCE.training_batch(0, 0, 3)
    empty = GPTaskBatch(batch.x, batch.y, torch.zeros_like(batch.mask), *tensors(batch)[3:])
    prediction = empty.oracle()
    assert not prediction.mean.any()
    expected = (batch.signal_scale**2 + gp.NOISE**2).sqrt()[:, None, None].expand_as(prediction.std)
    torch.testing.assert_close(prediction.std, expected)


def test_the_oracles_intervals_cover_what_they_say(validation):
    for level, tolerance in ((0.5, 0.02), (0.9, 0.01)):
        covered = RunningMoments()
        for batch in validation:
            inside = (batch.oracle().cdf(batch.y) - 0.5).abs() <= level / 2
            covered.add(task_means(inside.double(), batch.target.mask))
        assert covered.mean == pytest.approx(level, abs=tolerance)


@pytest.mark.parametrize(
    ("options", "expected", "tolerance"),
    [
        ({"min_std": 0.1}, (1.176, 1.372, 1.166), 0.05),
        ({}, (1.985, 2.598, 1.936), 0.15),
        ({"fixed_std": 1.0}, (-0.928, -0.919, -0.929), 0.003),
    ],
)
def test_the_ceiling_is_where_it_was_measured(validation, options, expected, tolerance):
    assert oracle_scores(validation, **options) == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(
    "draw", [lambda seed: SOURCE.training_batch(seed, 4, 8), lambda seed: SOURCE.validation_chunk(seed, 0)]
)
def test_a_seed_names_its_tasks(draw):
    first, again, other = draw(0), draw(0), draw(1)
    assert all(map(torch.equal, tensors(first), tensors(again)))
    assert not torch.equal(first.y, other.y)


def test_steps_chunks_and_the_two_splits_have_different_tasks():
    draws = [SOURCE.training_batch(0, step, 4).signal_scale for step in range(5)]
    draws += [SOURCE.validation_chunk(0, chunk).signal_scale[:4] for chunk in range(2)]
    assert len({tuple(draw.tolist()) for draw in draws}) == 7


@pytest.mark.parametrize("tasks", [1, 64, 70])
def test_a_longer_validation_set_begins_with_the_shorter(validation, tasks):
    short = list(validation_tasks(SOURCE, 0, tasks))
    assert sum(map(len, short)) == tasks
    for ours, theirs in zip(short, validation, strict=False):
        assert torch.equal(ours.y, theirs.y[: len(ours)])
        assert torch.equal(ours.is_context, theirs.is_context[: len(ours)])


def test_training_sizes_fill_their_stated_ranges():
    sizes = []
    for step in range(800):
        batch = SOURCE.training_batch(0, step, 1)
        context = int(batch.is_context.sum())
        sizes.append((context, batch.x.shape[1]))
        assert batch.mask.all()
        assert batch.is_context[0, :context].all()
    contexts, totals = zip(*sizes, strict=True)
    assert (min(contexts), max(contexts)) == (3, 97)
    assert all(context < total <= 100 for context, total in sizes)
    assert max(totals) == 100
    assert any(total == context + 1 for context, total in sizes)


def test_validation_tasks_lie_on_the_grid_with_contexts_in_range(validation):
    for batch in validation:
        assert torch.equal(batch.x[0, :, 0], torch.linspace(-2, 2, 400, dtype=torch.float64).float())
        assert (batch.whole.count == 400).all()
    counts = torch.cat([batch.context.count for batch in validation])
    assert counts.min() >= 3
    assert counts.max() <= 97
    assert counts.mean().item() == pytest.approx(50, abs=5)


def test_kernels_lie_in_their_stated_ranges(validation):
    for name, (low, high) in (("length_scale", (0.1, 0.6)), ("signal_scale", (0.1, 1.0))):
        values = torch.cat([getattr(batch, name) for batch in validation])
        assert low <= values.min() < low + 0.02
        assert high - 0.02 < values.max() <= high


def test_tasks_keep_their_kernel_in_another_precision_and_in_parts():
    batch = SOURCE.training_batch(0, 0, 4)
    part = batch.first(2).to(torch.float64)
    assert part.y.dtype == torch.float64
    torch.testing.assert_close(part.oracle().mean, batch.oracle().mean[:2])
