"""Rivals: the last value carried forward, contexts that come first, and factors of calibration."""

import math

import numpy as np
import pytest
import torch

from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.posteriors.prediction import Prediction
from nvdp.tables.calibration import CONTEXTS, SIZES, Errors, adjusted, best_tail
from nvdp.tables.rivals import last_value, scored_cases
from nvdp.tables.scores import verdict
from nvdp.tables.tasks import folds_of_groups, split_groups
from nvdp.tasks import Task, TaskBatch
from nvdp.units import Units


def walks(tasks=30, points=12, seed=0):
    random = np.random.default_rng(seed)
    x = np.arange(points, dtype=float)[:, None]
    return [(x, random.normal(size=(points, 1)).cumsum(0)) for _ in range(tasks)]


def test_the_last_value_is_the_newest_before_a_query_and_less_certain_further_away():
    tasks = walks()
    rival = last_value(tasks, Units.of([x for x, _ in tasks], [y for _, y in tasks]))
    known, values = torch.tensor([[2.0], [5.0]]).double(), torch.tensor([[1.0], [7.0]]).double()
    asked = torch.tensor([[0.0], [3.0], [6.0], [11.0]]).double()
    prediction = rival(Task(known, values, asked, torch.zeros(4, 1).double()))
    assert prediction.mean[:, 0].tolist() == pytest.approx([1.0, 1.0, 7.0, 7.0])
    assert prediction.std[3] > 1.5 * prediction.std[2]


def test_a_forecast_is_scored_on_what_comes_later():
    for case in scored_cases(walks(5), seed=0, context=4, prefix=True):
        assert len(case.x_context) == 4
        assert case.x_context.max() < case.x_target.min()


def test_intervals_that_are_too_narrow_get_a_factor_above_one():
    model = build_model(ModelConfig("cnp")).eval()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 20, 1, generator=generator)
    y = 8 * torch.randn(64, 20, 1, generator=generator)
    batches = [TaskBatch.first_points_as_context(x, y, size) for size in (2, 8)]
    found = adjusted(model, None, False, batches, 64)
    assert found.sizes == SIZES
    assert min(found.factors + found.factors_ahead) > 2


def test_a_factor_of_few_tasks_is_drawn_further_towards_what_is_believed():
    def factor(tasks):
        scale = torch.linspace(0.5, 2.5, tasks).repeat_interleave(8)  # a task's errors are large or small together
        number = torch.arange(tasks).repeat_interleave(8)
        same = torch.ones(len(scale))
        errors = Errors(scale, same, same.long(), same.bool(), number)
        assert errors.log_factor(0.0, 1e6) == pytest.approx(math.log(0.5 + 2.0 * 0.9), abs=0.1)
        assert errors.log_factor(0.3, 1e-6) == pytest.approx(0.3, abs=1e-3)
        return errors.log_factor(0.0, 0.1)

    assert 0.0 < factor(5) < 0.5 * factor(500)


def test_repeats_of_the_last_row_of_a_context_do_not_calibrate():
    x = torch.tensor([0.0, 1.0, 1.0, 2.0]).expand(CONTEXTS, 4)[..., None]
    batch = TaskBatch.first_points_as_context(x, torch.zeros_like(x), 2)
    prediction = Prediction(torch.ones_like(x)[None], torch.ones_like(x)[None])
    ordered, others = (Errors.of(prediction, batch, each, 0) for each in (True, False))
    assert len(ordered.ratio) == CONTEXTS  # the point at 2
    assert ordered.ahead.all()
    assert len(others.ratio) == 2 * CONTEXTS


def test_a_few_small_errors_do_not_narrow_intervals():
    def factor(ratios, tasks):
        ratio = torch.tensor(ratios)
        number = torch.arange(len(ratio)) * tasks // len(ratio)
        same = torch.ones(len(ratio))
        return math.exp(Errors(ratio, same, same.long(), same.bool(), number).log_factor(math.log(1.1), 0.05))

    assert factor([0.08, 0.24, 0.26, 0.1], 2) > 1.05  # all of them are below the smallest factor, by chance
    assert factor([0.0, 0.0, 0.0, 0.0], 2) > 0.9
    assert factor([0.2] * 4000, 400) < 0.6  # no chance


def test_the_first_line_says_which_rival_is_better():
    ours, other = {"LL": -1.0, "RMSE": 2.0}, {"LL": -0.9, "RMSE": 2.5}
    line = verdict({"nvdp": ours, "hierarchical GP": other})
    assert line.startswith("hierarchical GP predicts the held-out tasks better than nvdp: LL -0.900 against -1.000")
    level = verdict({"nvdp": ours, "mixed model": {"LL": -0.999, "RMSE": 2.5}})
    said = "nvdp and mixed model are level on the held-out tasks: LL -1.000 and -0.999; nvdp has the lowest RMSE (2)."
    assert level == said
    unsure = verdict({"nvdp": ours, "mixed model": other}, errors={"mixed model": 0.06})
    assert unsure.startswith("mixed model is ahead")
    assert "within two standard errors: -0.900 against -1.000 of nvdp (difference 0.100 ± 0.060)" in unsure
    apart = verdict({"nvdp": ours, "mixed model": other}, {"a": {"nvdp": ours, "mixed model": other}})
    assert apart.endswith("; of a nvdp has the lowest RMSE (2).")


def test_tasks_of_one_group_are_in_one_fold_and_held_out_together():
    groups = [place // 3 for place in range(30)]
    for rest, held in [*folds_of_groups(groups, 5, seed=0), split_groups(groups, seed=0, share=0.3)]:
        assert sorted(rest + held) == list(range(30))
        assert {groups[place] for place in rest}.isdisjoint({groups[place] for place in held})


def test_a_tail_is_found_where_there_are_outliers_and_not_elsewhere() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(40, 30, 1, generator=generator, dtype=torch.float64)
    outliers = torch.where(torch.rand(y.shape, generator=generator) < 0.1, 4 * y, y)
    is_context = torch.zeros(40, 30, dtype=torch.bool)
    is_context[:, 0] = True

    def answers(values: torch.Tensor) -> list[tuple[Prediction, TaskBatch]]:
        batch = TaskBatch(torch.zeros_like(values), values, is_context, torch.ones_like(is_context))
        return [(Prediction(torch.zeros(1, *values.shape), torch.ones(1, *values.shape)), batch)]

    share, width = best_tail(answers(outliers))
    assert 0.05 <= share <= 0.2
    assert width >= 3
    assert best_tail(answers(y))[0] <= 0.02
