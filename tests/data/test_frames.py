"""Tasks in memory: what a training step shows of them, and what it leaves as it is."""

import pytest
import torch

from nvdp.data.frames import CONTEXTS, MOST_POINTS, Augmentation, FrameTasks
from nvdp.data.registry import task_source
from nvdp.errors import InputError


@pytest.fixture
def tasks(generator):
    sizes = [2, 5, 30, 400]
    return tuple((torch.randn(n, 2, generator=generator), torch.randn(n, 3, generator=generator)) for n in sizes)


def points(x, y, mask):
    return {tuple(row.tolist()) for row in torch.cat([x, y], -1)[mask]}


def test_a_batch_holds_points_of_its_tasks_and_no_others(tasks):
    source = FrameTasks(tasks)
    known = set().union(*(points(x, y, torch.ones(len(x), dtype=torch.bool)) for x, y in tasks))
    batch = source.training_batch(seed=0, step=0, tasks=32)
    assert points(batch.x, batch.y, batch.mask) <= known
    assert batch.mask.sum(1).max() == MOST_POINTS
    assert (batch.target.mask.sum(1) >= 1).all()


def test_the_same_step_gives_the_same_tasks_and_another_others(tasks):
    source = FrameTasks(tasks, Augmentation(0.1, 0.1, 0.1))
    first, again, other = (source.training_batch(1, step, 8) for step in (3, 3, 4))
    assert torch.equal(first.y, again.y)
    assert first.y.shape != other.y.shape or not torch.equal(first.y, other.y)


def test_a_shift_moves_all_points_of_a_task_together(tasks):
    whole = (tasks[2],)
    plain = FrameTasks(whole).training_batch(0, 0, 1)
    moved = FrameTasks(whole, Augmentation(shift=1.0)).training_batch(0, 0, 1)
    difference = (moved.y - plain.y)[0]
    torch.testing.assert_close(difference, difference[:1].expand_as(difference))
    assert difference.abs().max() > 0.1
    assert torch.equal(moved.x, plain.x)


def test_every_held_out_task_is_seen_with_contexts_of_growing_size(tasks):
    batch = FrameTasks(tasks).scored_batches(0)[0]
    assert len(batch) == CONTEXTS * len(tasks)
    sizes = batch.is_context.sum(1).reshape(len(tasks), CONTEXTS)
    assert (sizes[:, 0] == 1).all()
    assert (sizes.diff(dim=1) >= 0).all()
    assert sizes[:, -1].tolist() == [1, 4, 29, 50]


def test_what_cannot_be_learned_from_is_told(tasks):
    with pytest.raises(InputError, match="has 1 points; expected at least 2"):
        FrameTasks(((torch.zeros(1, 1), torch.zeros(1, 1)),))
    with pytest.raises(InputError, match="'shift' is -1"):
        Augmentation(shift=-1)
    with pytest.raises(InputError, match="nvdp fit"):
        task_source("csv").training_batch(0, 0, 1)
