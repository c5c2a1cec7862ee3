import math

import numpy as np
import pytest
import torch

from nvdp.errors import InputError, unknown_name
from nvdp.tasks import PointSet, Task, TaskBatch, as_points

FIELDS = ("x_context", "y_context", "x_target", "y_target")


@pytest.mark.parametrize(
    ("values", "shape", "dtype"),
    [
        ([1, 2, 3], (3, 1), torch.float32),
        ([[1.0, 2.0]], (1, 2), torch.float32),
        (np.zeros((4, 2)), (4, 2), torch.float64),
        ([], (0, 1), torch.float32),
    ],
)
def test_points_become_a_float_matrix(values, shape, dtype):
    points = as_points(values, "x")
    assert points.shape == shape
    assert points.dtype == dtype


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (torch.zeros(2, 3, 4), r"x has shape \(2, 3, 4\); expected \(points, features\)"),
        ([[0.0], [math.nan]], r"x holds nan at index \(1, 0\)"),
        ([[0.0, math.inf]], r"x holds inf at index \(0, 1\)"),
    ],
)
def test_bad_points_are_refused_with_shape_or_index(bad, words):
    with pytest.raises(InputError, match=words):
        as_points(bad, "x")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (([0.0, 1.0], [0.0], [0.0], [0.0]), r"x_context has shape \(2, 1\) but y_context has shape \(1, 1\)"),
        (([0.0], [0.0], [0.0], [0.0, 1.0]), r"x_target has shape \(1, 1\) but y_target has shape \(2, 1\)"),
        (([[0.0, 1.0]], [0.0], [0.0], [0.0]), "x_context has 2 features but x_target has 1"),
        (([0.0], [0.0], [0.0], [[0.0, 1.0, 2.0]]), "y_context has 1 features but y_target has 3"),
        (([0.0], [math.nan], [0.0], [0.0]), r"y_context holds nan at index \(0, 0\)"),
    ],
)
def test_a_task_that_does_not_fit_together_is_refused_with_its_numbers(arrays, words):
    with pytest.raises(InputError, match=words):
        Task(*arrays)


@pytest.mark.parametrize(
    ("x", "y", "mask", "words"),
    [
        (torch.zeros(2, 3, 1), torch.zeros(2, 4, 1), None, r"\(2, 3, 1\) but y has shape \(2, 4, 1\)"),
        (torch.zeros(3, 1), torch.zeros(4, 1), None, r"x holds 3 points a task and y 4"),
        (torch.zeros(2, 3, 1), torch.zeros(3, 1), None, r"x has shape \(2, 3, 1\) and y \(3, 1\)"),
        (torch.zeros(1, 2, 3, 1), torch.zeros(2, 3, 1), None, r"\(1, 2, 3, 1\)"),
        (
            torch.zeros(2, 3, 1),
            torch.zeros(2, 3, 1),
            torch.ones(2, 4, dtype=torch.bool),
            r"mask has shape \(2, 4\); expected \(2, 3\)",
        ),
    ],
)
def test_a_point_set_that_does_not_fit_together_is_refused_with_shapes(x, y, mask, words):
    with pytest.raises(InputError, match=words):
        PointSet.of(x, y, mask)


def test_nan_in_one_task_is_refused_with_the_index_in_its_array():
    with pytest.raises(InputError, match=r"y holds nan at index \(1, 0\)"):
        PointSet.of([0.0, 1.0], [1.0, math.nan])


def test_values_whose_sum_overflows_are_finite():
    assert PointSet.of([3e38, 3e38], [0.0, 0.0]).x.shape == (1, 2, 1)


@pytest.mark.parametrize("elsewhere", ["x", "y", "mask"])
def test_points_follow_another_tensor_whichever_part_is_elsewhere(elsewhere):
    parts = {"x": torch.zeros(1, 2, 1), "y": torch.zeros(1, 2, 1), "mask": torch.ones(1, 2, dtype=torch.bool)}
    others = {name: part if name == elsewhere else part.to("meta") for name, part in parts.items()}
    points = PointSet(**others).like(torch.zeros(1, device="meta"))
    assert {points.x.device.type, points.y.device.type, points.mask.device.type} == {"meta"}


def test_nan_in_a_batch_is_refused_with_its_index():
    x = torch.zeros(2, 3, 1)
    y = x.clone()
    y[1, 2, 0] = math.nan
    with pytest.raises(InputError, match=r"y holds nan at index \(1, 2, 0\)"):
        PointSet.of(x, y)


def test_count_is_the_number_of_real_points(ragged_batch):
    batch = ragged_batch()
    assert batch.context.count.tolist() == [5, 0, 9, 2]
    assert batch.target.count.tolist() == [3, 4, 1, 6]
    assert batch.whole.count.tolist() == [8, 4, 10, 8]


def test_collated_tasks_come_back_as_they_went_in(make_task):
    tasks = [make_task(c, t, 2, 3) for c, t in [(3, 2), (0, 1), (4, 0), (1, 7)]]
    back = list(TaskBatch.collate(tasks))
    assert len(back) == len(tasks)
    for before, after in zip(tasks, back, strict=True):
        for field in FIELDS:
            assert torch.equal(getattr(before, field), getattr(after, field))


def test_padding_is_zero_and_outside_every_mask(ragged_batch):
    batch = ragged_batch()
    assert not batch.x[~batch.mask].any()
    assert not batch.y[~batch.mask].any()
    assert not (batch.is_context & ~batch.mask).any()
    assert torch.equal(batch.is_context ^ batch.target.mask, batch.mask)


def test_tasks_of_different_widths_do_not_collate(make_task):
    with pytest.raises(InputError, match=r"\[\(1, 1\), \(2, 1\)\]"):
        TaskBatch.collate([make_task(1, 1), make_task(1, 1, x_dim=2)])


def test_zero_tasks_do_not_collate():
    with pytest.raises(InputError, match="got 0"):
        TaskBatch.collate([])


def test_precision_changes_values_but_not_masks(ragged_batch):
    batch = ragged_batch().to(torch.float64)
    assert batch.x.dtype == batch.y.dtype == torch.float64
    assert batch.mask.dtype == batch.is_context.dtype == torch.bool


def test_first_points_as_context_splits_without_padding():
    x = torch.arange(12.0).view(2, 6, 1)
    batch = TaskBatch.first_points_as_context(x, x + 1, 4)
    assert batch.mask.all()
    for task, own_x in zip(batch, x, strict=True):
        assert torch.equal(task.x_context, own_x[:4])
        assert torch.equal(task.y_target, own_x[4:] + 1)


def test_first_takes_whole_tasks(ragged_batch):
    batch = ragged_batch()
    assert len(batch.first(2)) == 2
    assert torch.equal(batch.first(2).x, batch.x[:2])
    assert len(batch.first(10)) == 4


def test_an_unknown_name_is_told_with_its_nearest():
    message = str(unknown_name("model", "nvpd", ["nvdp", "cnp"]))
    assert "'nvpd'" in message
    assert "did you mean 'nvdp'?" in message
    assert "did you mean" not in str(unknown_name("model", "zzz", ["nvdp", "cnp"]))


def test_the_context_leaves_out_what_lies_behind_its_last_point():
    x = torch.arange(5.0)[None, :, None]
    batch = TaskBatch.first_points_as_context(x, x, size=2)
    assert batch.context.x.flatten().tolist() == [0.0, 1.0]
    assert TaskBatch.first_points_as_context(x, x, size=0).context.x.shape == (1, 0, 1)
