"""The general prior: tasks as a model takes them, in units of their contexts."""

import pytest
import torch

from nvdp.data.priors import SIZES, TARGETS, Draw, PriorTasks, draw_tasks
from nvdp.units import FARTHEST_X, FARTHEST_Y, MOST_INPUTS


@pytest.mark.parametrize("step", range(8))
def test_every_value_is_finite_and_bounded_and_padding_is_zero(step):
    batch = PriorTasks().training_batch(seed=3, step=step, tasks=16)
    assert batch.x.isfinite().all()
    assert batch.y.isfinite().all()
    assert batch.x[..., :MOST_INPUTS].abs().max() <= FARTHEST_X
    assert batch.y.abs().max() <= FARTHEST_Y
    assert not batch.x[~batch.mask].any()
    assert not batch.y[~batch.mask].any()
    assert (batch.target.count == TARGETS).all()


def test_the_same_step_gives_the_same_tasks():
    one, same, other = (PriorTasks().training_batch(seed, 5, 8).y for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert one.shape != other.shape or not torch.equal(one, other)


def test_contexts_are_standardised_and_told_their_size():
    batch = PriorTasks().validation_chunk(0, 0)
    large = batch.context.count > 5
    y = torch.where(batch.is_context[..., None], batch.y, torch.nan)[large]
    assert y.nanmean(1).abs().max() < 1.5
    counts = (batch.x[:, 0, -1] + 1).mul(3).exp() - 1
    torch.testing.assert_close(counts, batch.context.count, atol=0.01, rtol=1e-4)


def test_one_two_and_three_inputs_and_all_sizes_are_drawn():
    draw = Draw(torch.Generator().manual_seed(0), 200)
    low, high = SIZES[1]
    x, y, sizes, inputs = draw_tasks(draw, draw.whole(low, high), high, 4)
    assert set(inputs.tolist()) == {1, 2, 3}
    assert not x[inputs == 1][..., 1:].any()
    assert (sizes.min(), sizes.max()) == (low, high)
    assert y.isfinite().all()


def test_a_step_of_training_on_it_changes_the_model():
    from nvdp.training.loop import trainer_in_memory
    from nvdp.training.presets import preset_config

    small = {"decoder.width": 8, "encoder.size": 8, "rates.width": 8, "attention.width": 8, "attention.blocks": 1}
    config = preset_config("general", "nvdp-attentive", "quick", architecture=small | {"attention.heads": 2}, steps=2)
    trainer = trainer_in_memory(config, PriorTasks())
    before = next(trainer.model.parameters()).clone()
    assert trainer.take_step() is not None
    assert not torch.equal(before, next(trainer.model.parameters()))
