"""A task's state: as good as its points, whatever the model, and refused where it does not belong."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from nvdp.data.gp import GPTasks
from nvdp.errors import InputError
from nvdp.models.registry import build_model
from nvdp.models.state import TaskState, encoder_fingerprint, posterior_from_bytes
from nvdp.tasks import PointSet

NAMES = ("nvdp", "cnp", "np", "np+vp", "np+cnp", "np+cnp+vp")
FINGERPRINT_OF_ONES = "590f3b0ff6f269a1"
VARIANTS = [(name, {}) for name in NAMES]
VARIANTS += [("nvdp", {"encoder.task_norm": True}), ("nvdp", {"decoder.sees": "x,r"})]
VARIANTS += [
    ("nvdp", {"rates.norm": True}),
    ("cnp", {"inputs.x_centre": 0.5, "inputs.y_scale": 2.0}),
    ("nvdp", {"inputs.fourier": 3, "encoder.aggregation": "bayesian", "encoder.task_norm": True}),
    ("np+cnp", {"encoder.aggregation": "bayesian"}),
]


@pytest.fixture(params=VARIANTS, ids=lambda v: "-".join([v[0], *map(str, v[1])]))
def model(request, small_config):
    name, changes = request.param
    return build_model(small_config(name, x_dim=2, y_dim=3, changes=changes)).eval().requires_grad_(False)


@pytest.fixture
def nvdp_model(small_config):
    return build_model(small_config("nvdp")).eval().requires_grad_(False)


def same(a, b, x, tolerance=1e-5):
    for samples in (0, 4):
        ours, theirs = a.predict(x, samples), b.predict(x, samples)
        torch.testing.assert_close(ours.functions, theirs.functions, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(ours.stds, theirs.stds, atol=tolerance, rtol=tolerance)


def test_points_taken_in_one_by_one_equal_adapting_to_all_of_them(model, make_task):
    task = make_task(7, 3, 2, 3)
    posterior = TaskState.empty(model).posterior()
    for x, y in zip(task.x_context, task.y_context, strict=True):
        posterior = posterior.update(x[None], y[None])
    same(posterior, model.adapt(task.x_context, task.y_context), task.x_target)


def test_an_adapted_posterior_goes_on_learning(model, make_task):
    """Update equals adapting from scratch, forget is its inverse, and bytes give the posterior again."""
    task = make_task(8, 3, 2, 3)
    x, y = task.x_context, task.y_context
    few, all_points = model.adapt(x[:5], y[:5]), model.adapt(x, y)
    more = few.update(x[5:], y[5:])
    same(more, all_points, task.x_target)
    same(all_points.forget(x[5:], y[5:]), few, task.x_target)
    assert all_points.forget(x, y).memory.counts.item() == 0
    again = model.posterior_from_bytes(all_points.to_bytes())
    same(again, all_points, task.x_target)
    assert again.predict(task.x_target).mean.dim() == 2


def test_adapted_tasks_of_different_sizes_go_on_learning_together(model, ragged_batch):
    batch = ragged_batch(2, 3)
    same(model.adapt(batch.context).update(batch.target), model.adapt(batch.whole), batch.x)


def test_arrays_written_over_after_adapting_are_not_remembered(nvdp_model):
    x, y = np.array([[0.0], [1.0]], np.float32), np.array([[0.3], [0.5]], np.float32)
    posterior, expected = nvdp_model.adapt(x, y), TaskState.of(nvdp_model, x, y).update([2.0], [0.1]).posterior()
    x[:], y[:] = 7, 7
    same(posterior.update([2.0], [0.1]), expected, [0.5])


def test_a_model_in_training_adapts_and_says_why_it_does_not_remember(small_config):
    posterior = build_model(small_config("nvdp", {"encoder.task_norm": True})).adapt([0.0], [1.0])
    with pytest.raises(InputError, match=r"model\.eval"):
        posterior.update([1.0], [0.0])


def test_a_model_whose_targets_read_the_points_keeps_no_state(small_config):
    model = build_model(small_config("nvdp-attentive")).eval()
    with pytest.raises(InputError, match="needs the points themselves"):
        TaskState.of(model, [0.0], [1.0])
    with pytest.raises(InputError, match="adapt its model to all points together"):
        model.adapt([0.0], [1.0]).update([1.0], [0.0])


def test_a_model_whose_points_attend_to_each_other_keeps_no_state(small_config):
    model = build_model(small_config("nvdp", {"encoder.aggregation": "attention"})).eval()
    with pytest.raises(InputError, match="needs the points themselves"):
        TaskState.of(model, [0.0], [1.0])


def test_the_fingerprint_of_an_encoder_stays_and_fourier_features_make_another(small_config):
    model = build_model(small_config("nvdp"))
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
    assert encoder_fingerprint(model).hex() == FINGERPRINT_OF_ONES
    model.encoder.x_scale = dataclasses.replace(model.encoder.x_scale, fourier=1)
    assert encoder_fingerprint(model).hex() != FINGERPRINT_OF_ONES


def test_points_that_were_never_seen_are_not_forgotten_where_it_can_be_told(small_config, generator):
    model = build_model(small_config("nvdp", {"encoder.aggregation": "bayesian"})).eval().requires_grad_(False)
    x, y = (5 * values for values in torch.randn(2, 200, generator=generator))
    sure = model.encoder.encode(PointSet.of(x, y))[0, :, 8]  # how sure each point is of the first feature
    least, surest = sure.argsort()[:2], int(sure.argmax())
    assert sure[surest] > sure[least].sum()
    state = TaskState.of(model, x[least], y[least])
    assert state.forget(x[least[:1]], y[least[:1]]).counts == 1
    with pytest.raises(InputError, match="cannot forget points that were never observed"):
        state.forget(x[[surest]], y[[surest]])


def test_forgotten_points_leave_nothing(model, make_task):
    task = make_task(9, 3, 2, 3)
    x, y = task.x_context, task.y_context
    posterior = TaskState.of(model, x, y).posterior()
    same(posterior.forget(x[4:], y[4:]), model.adapt(x[:4], y[:4]), task.x_target)
    nothing = posterior.forget(x, y)
    assert nothing.memory.counts.item() == 0
    assert not nothing.memory.sums.any()
    same(nothing, model.adapt(x[:0], y[:0]), task.x_target, 0)


def test_a_thousand_points_forgotten_leave_the_one_that_is_not(nvdp_model, generator):
    """In float32 the sum of a thousand others would have swallowed the last digits of the one that stays."""
    x, y = torch.randn(1_001, 1, generator=generator), torch.randn(1_001, 1, generator=generator)
    state = TaskState.of(nvdp_model, x, y)
    for start in range(1, 1_001, 100):
        state = state.forget(x[start : start + 100], y[start : start + 100])
    alone = TaskState.of(nvdp_model, x[:1], y[:1])
    torch.testing.assert_close(state.sums, alone.sums, atol=1e-5, rtol=1e-5)


def test_several_tasks_with_masks_at_once(model, ragged_batch):
    batch = ragged_batch(2, 3)
    state = TaskState.empty(model, len(batch)).update(batch.context).update(batch.target)
    same(state.posterior(), model.adapt(batch.whole), batch.x)
    same(state.forget(batch.target).posterior(), model.adapt(batch.context), batch.x)


def test_bytes_give_the_same_posterior_again(model, make_task):
    task = make_task(5, 3, 2, 3)
    posterior = TaskState.of(model, task.x_context, task.y_context).posterior()
    again = posterior_from_bytes(model, posterior.to_bytes())
    same(again, posterior, task.x_target, 0)
    assert again.predict(task.x_target).mean.dim() == 2
    assert again.to_bytes() == posterior.to_bytes()


def test_a_state_does_not_grow_with_its_points(nvdp_model, make_task):
    few, many = (TaskState.of(nvdp_model, t.x_context, t.y_context) for t in (make_task(1, 1), make_task(500, 1)))
    assert len(few.to_bytes()) == len(many.to_bytes())


def test_bytes_of_another_model_are_refused(nvdp_model, small_config):
    data = TaskState.of(nvdp_model, [0.0], [1.0]).to_bytes()
    other = build_model(small_config("nvdp"), seed=1).eval()
    with pytest.raises(InputError, match="this model's is"):
        posterior_from_bytes(other, data)
    assert posterior_from_bytes(build_model(small_config("nvdp")).eval(), data).memory.counts.item() == 1


def test_every_damaged_byte_and_every_cut_is_found(nvdp_model):
    data = TaskState.of(nvdp_model, [0.0], [1.0]).to_bytes()
    for index in range(len(data)):
        with pytest.raises(InputError):
            posterior_from_bytes(nvdp_model, data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
        with pytest.raises(InputError):
            posterior_from_bytes(nvdp_model, data[:index])
    with pytest.raises(InputError, match="checksum"):
        posterior_from_bytes(nvdp_model, data + b"\0")


def test_what_cannot_be_is_told_in_one_line(nvdp_model, small_config):
    state = TaskState.of(nvdp_model, [0.0, 1.0], [1.0, 2.0])
    with pytest.raises(InputError, match="cannot forget 3 points of a task that has seen 2"):
        state.forget([0.0, 1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="x has 2 features"):
        state.update([[0.0, 1.0]], [[1.0]])
    with pytest.raises(InputError, match="of 2 tasks; this state is of 1"):
        state.update(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1))
    with pytest.raises(InputError, match="finite"):
        state.update([float("nan")], [0.0])
    forgetful = nvdp_model.adapt([0.0], [1.0])
    forgetful.memory = None
    with pytest.raises(InputError, match="no memory"):
        forgetful.update([0.0], [1.0])
    training = build_model(small_config("nvdp", {"encoder.task_norm": True}))
    with pytest.raises(InputError, match=r"model\.eval"):
        TaskState.of(training, [0.0], [1.0])


def test_a_state_without_points_is_the_prior_of_a_normalised_model(small_config):
    model = build_model(small_config("nvdp", {"encoder.task_norm": True}))
    model.adapt_both(GPTasks().training_batch(0, 0, 8))  # the running averages move away from 0
    model.eval()
    x, y = torch.zeros(0, 1), torch.zeros(0, 1)
    state, prior = TaskState.of(model, x, y).posterior(), model.adapt(x, y)
    torch.testing.assert_close(state.mean_rates(), prior.mean_rates())


def test_a_posterior_is_copied_and_a_state_is_kept_in_half_precision(small_config):
    model = build_model(small_config("nvdp")).eval()
    posterior = model.adapt([0.0, 1.0], [0.5, 0.2])
    twin = copy.deepcopy(posterior)
    assert torch.equal(twin.predict([0.3], 4).functions, posterior.predict([0.3], 4).functions)
    half = build_model(small_config("nvdp")).eval().to(torch.bfloat16)
    data = half.adapt([0.0, 1.0], [0.5, 0.2]).to_bytes()
    assert half.posterior_from_bytes(data).predict([0.3]).mean.isfinite().all()
