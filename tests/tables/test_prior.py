"""The hierarchical GP of a table: recovers what it drew, conditions exactly, and its residuals are standard normal."""

from dataclasses import replace

import pytest
import torch

from nvdp import NVDPRegressor
from nvdp.botorch import NVDPModel
from nvdp.data.frames import FrameTasks
from nvdp.data.tables import Columns
from nvdp.loading import Predictor
from nvdp.models.config import ModelConfig
from nvdp.models.hierarchical_gp import HierarchicalGP
from nvdp.models.registry import build_model
from nvdp.models.task_kernel import Observations
from nvdp.posteriors.adjusted import Adjustment
from nvdp.tables.prior import DrawnTasks, fit_prior
from nvdp.tasks import PointSet, Task, TaskBatch
from nvdp.training.presets import table_config
from nvdp.units import Units
from nvdp.web.served import ServedModel


def lines(tasks=40, points=9, outputs=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sets = []
    for _ in range(tasks):
        x = 3 * torch.rand(points, 1, generator=generator) - 1.5
        level, slope = torch.randn(2, 1, outputs, generator=generator)
        sets.append((x, level + (1 + 0.3 * slope) * x + 0.1 * torch.randn(points, outputs, generator=generator)))
    return tuple(sets)


@pytest.fixture(scope="module")
def process():
    return fit_prior(lines())


def test_the_noise_of_a_table_is_found(process):
    noise = process.kernel.noise(process.values, torch.zeros(1, 1, 1).double(), torch.zeros(1, 1, dtype=torch.long))
    assert 0.07 < noise.item() < 0.14


def test_conditioning_is_that_of_the_joint_gaussian(process):
    (x, y), *_ = lines(1, seed=5)
    prediction = process.plain.predict(Task(x[:4], y[:4], x[4:], y[4:]))
    mean, covariance, noise = (each[0] for each in process.plain.whole(Observations.of([(x, y)])))
    whole = covariance[0] + torch.diag(noise[0])
    weights = torch.linalg.solve(whole[:4, :4], whole[:4, 4:]).mT
    torch.testing.assert_close(prediction.mean[:, 0], mean[4:] + weights @ (y[:4, 0].double() - mean[:4]))
    variance = (whole[4:, 4:] - weights @ whole[:4, 4:]).diagonal()
    torch.testing.assert_close(prediction.std[:, 0], variance.sqrt())


def test_scales_of_tasks_are_found_and_integrated_out(process):
    generator = torch.Generator().manual_seed(3)
    noise = torch.where(torch.rand(80, generator=generator) < 0.5, 0.05, 0.5)
    sets = [(x, y + s * torch.randn(y.shape, generator=generator)) for (x, y), s in zip(lines(80), noise, strict=True)]
    mixed = fit_prior(sets)
    assert len(mixed.shares) > 2
    torch.testing.assert_close(mixed.shares.sum(), torch.tensor(1.0).double())
    tasks = [Task(x[:5], y[:5], x[5:], y[5:]) for x, y in sets]
    gain = [mixed.predict(t).log_prob(t.y_target) - mixed.plain.predict(t).log_prob(t.y_target) for t in tasks]
    assert torch.stack(gain).mean() > 0.1
    prediction = mixed.predict(tasks[0])
    torch.testing.assert_close(prediction.cdf(prediction.quantile(0.95)), torch.full((4, 1), 0.95).double())


def test_residuals_of_drawn_tasks_are_standard_normal(process):
    plain = replace(process.plain, root=0 * process.root, tails=float("inf"))
    generator = torch.Generator().manual_seed(1)
    drawn = plain.draw([x for x, _ in lines(300, seed=2)], generator)
    tasks = TaskBatch.collate([Task(x[:3], y[:3], x[3:], y[3:]) for x, y in drawn])
    seen = plain.residuals(tasks)
    assert seen.x.shape[-1] == 2
    assert torch.equal(seen.mask, tasks.target.mask)
    for points in (seen.mask, seen.is_context):
        assert abs(seen.y[points].mean().item()) < 0.1
        assert 0.85 < seen.y[points].std().item() < 1.2


def test_a_missing_output_is_left_out_by_itself():
    sets = lines(outputs=2)
    holes = [(x, y.clone()) for x, y in sets]
    for index, (_, y) in enumerate(holes):
        y[index % 9, index % 2] = torch.nan
    process = fit_prior(holes)
    x, y = holes[0]
    context = PointSet(x[None, :3], y[None, :3], torch.ones(1, 3).bool())
    prediction = process.given(context).predict(x[None, 3:])
    assert prediction.mean.shape == (1, 6, 2)
    assert (prediction.mean[0] - sets[0][1][3:]).abs().mean() < 0.5


def test_drawn_and_real_tasks_share_a_batch_that_depends_on_its_step_alone(process):
    source = DrawnTasks(FrameTasks(lines(), forecasts=0.5), process, share=0.5, residuals=True)
    first, again, other = (source.training_batch(0, step, 8) for step in (3, 3, 4))
    assert torch.equal(first.x, again.x)
    assert first.y.shape != other.y.shape or not torch.equal(first.y, other.y)
    assert len(first) == 8
    assert source.x_dim == first.x.shape[-1] == 2


def test_a_process_is_the_same_after_its_tensors(process):
    again = HierarchicalGP.from_tensors(process.tensors())
    (x, y), *_ = lines(1, seed=5)
    ours, theirs = (each.predict(Task(x[:4], y[:4], x[4:], y[4:])) for each in (process, again))
    torch.testing.assert_close(ours.mean, theirs.mean)
    torch.testing.assert_close(ours.std, theirs.std)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_a_blend_answers_for_one_task_as_for_several(process, share):
    model = build_model(ModelConfig("nvdp", 2, 1)).eval()
    adjustment = Adjustment(process, True, share, (2,), (1.5, 1.2), (1.4, 1.3))
    sets, ask = lines(2, seed=5), torch.linspace(-1, 1, 5)[:, None]
    both = adjustment.adapt(model, PointSet.of(*(torch.stack(part)[:, :4] for part in zip(*sets, strict=True))))
    together = both.predict(ask)
    for index, (x, y) in enumerate(sets):
        alone = adjustment.adapt(model, x[:4], y[:4])
        torch.testing.assert_close(alone.predict(ask).mean, together.mean[index])
        torch.testing.assert_close(alone.predict(ask).std, together.std[index])
        more = adjustment.adapt(model, x[:3], y[:3]).update(x[3:4], y[3:4]).predict(ask)
        torch.testing.assert_close(more.mean, together.mean[index])
        functions = alone.predict(ask, samples=400)
        assert (functions.std / together.std[index] - 1).abs().max() < 0.25
        assert alone.suggest(ask, k=2).shape == (2,)


def test_a_model_around_a_process_gives_one_answer_by_every_door(process):
    x, y = lines()[0]
    units = Units((10.0,), (2.0,), (5.0,), (3.0,), (0.0,), (20.0,))
    config = table_config("nvdp-attentive", 2, 1, tasks=40, steps=10, seed=0)
    model = build_model(config.model).eval().requires_grad_(False)
    predictor = Predictor(model, units, config, Columns("tree", ("day",), ("size",)), {}, Adjustment(process, True))
    day, size = (10 + 2 * x.double()).numpy(), (5 + 3 * y.double()).numpy()
    assert list(predictor.widths.x) == [1]
    mean = predictor.adapt(day[:4], size[:4]).predict(day[4:]).mean[:, 0]
    estimator = NVDPRegressor()
    estimator.predictor_ = predictor
    torch.testing.assert_close(torch.as_tensor(estimator.fit(day[:4], size[:4, 0]).predict(day[4:])), mean.double())
    assert ServedModel.of("trees", predictor, pretrained=False).entry.x_dim == 1
    botorch = NVDPModel(predictor, torch.as_tensor(day[:4]), torch.as_tensor(size[:4]))
    asked = torch.as_tensor(day[4:]).requires_grad_(True)
    answer = botorch.posterior(asked, observation_noise=True)
    torch.testing.assert_close(answer.mean[:, 0].detach(), mean.double())
    std = predictor.adapt(day[:4], size[:4]).predict(day[4:]).std
    torch.testing.assert_close(answer.variance.sqrt().detach(), std.double(), rtol=1e-5, atol=1e-5)
    assert torch.autograd.grad(answer.mean.sum(), asked)[0].isfinite().all()
    several = botorch.posterior(asked.detach()[None].expand(3, -1, -1))
    assert several.rsample(torch.Size([5])).shape == (5, 3, len(asked), 1)
    assert (several.variance[0] < answer.variance).all()
