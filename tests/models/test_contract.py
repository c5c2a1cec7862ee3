"""What every regression model promises, whatever its name, its variance and its options."""

import numpy as np
import pytest
import torch
from torch.distributions import kl_divergence

from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.models.registry import MODELS, build_model, model_spec
from nvdp.posteriors.dropout import DropoutPosterior
from nvdp.posteriors.latent import PointPosterior
from nvdp.tasks import PointSet, Task, TaskBatch

NAMES = [name for name, spec in MODELS.items() if "regression" in spec.tasks]
VARIANTS = [(name, {"likelihood.variance": variance}) for name in NAMES for variance in ("learned", "fixed")]
VARIANTS += [
    ("nvdp", {"decoder.sees": "x,r"}),
    ("nvdp", {"encoder.residual": True, "rates.residual": True}),
    ("nvdp", {"rates.bounds": "clip"}),
    ("np+cnp", {"encoder.residual": True, "rates.residual": True}),
    ("cnp", {"encoder.residual": True, "rates.residual": True}),
    (
        "nvdp",
        {"inputs.fourier": 3, "encoder.residual": True, "rates.residual": True, "encoder.aggregation": "bayesian"},
    ),
    ("cnp", {"inputs.fourier": 2}),
    ("nvdp-attentive", {"inputs.fourier": 2}),
]
FLOAT32 = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(params=VARIANTS, ids=lambda v: "-".join([v[0], *map(str, v[1].values())]))
def model(request, small_config):
    name, changes = request.param
    return build_model(small_config(name, x_dim=2, y_dim=3, changes=changes)).requires_grad_(False)


@pytest.fixture
def task(make_task):
    return make_task(6, 4, 2, 3)


def adapted(model, task):
    return model.adapt(task.x_context, task.y_context)


def close(a, b, **tolerance):
    torch.testing.assert_close(a.functions, b.functions, **(tolerance or FLOAT32))
    torch.testing.assert_close(a.stds, b.stds, **(tolerance or FLOAT32))


def test_a_masked_batch_equals_its_tasks_one_by_one(model, ragged_batch):
    batch = ragged_batch(2, 3)
    together = model.adapt(batch.context).predict(batch.x)
    for index, alone in enumerate(batch):
        target = batch.target.mask[index]
        prediction = adapted(model, alone).predict(alone.x_target)
        torch.testing.assert_close(together.mean[index, target], prediction.mean, **FLOAT32)
        torch.testing.assert_close(together.std[index, target], prediction.std, **FLOAT32)


def test_values_in_the_padding_change_nothing(model, ragged_batch):
    batch = ragged_batch(2, 3)
    context = batch.context
    outside = ~context.mask[..., None]
    spoiled = PointSet(context.x + 9 * outside, context.y - 9 * outside, context.mask)
    close(model.adapt(spoiled).predict(batch.x), model.adapt(context).predict(batch.x))


def test_an_empty_context_gives_the_prior(model, task):
    prior = model.adapt(torch.empty(0, 2), torch.empty(0, 3))
    for samples in (0, 3):
        prediction = prior.predict(task.x_target, samples)
        assert torch.isfinite(prediction.functions).all()
        assert (prediction.stds > 0).all()


def test_predictions_depend_on_the_context(model, task):
    other = Task(task.x_context, task.y_context + 2, task.x_target, task.y_target)
    ours, theirs = (adapted(model, t).predict(task.x_target).mean for t in (task, other))
    assert (ours - theirs).abs().max() > 1e-4


def test_order_of_the_context_does_not_matter(model, task):
    order = torch.tensor([3, 5, 0, 2, 4, 1])
    shuffled = model.adapt(task.x_context[order], task.y_context[order])
    close(shuffled.predict(task.x_target, 2, 1), adapted(model, task).predict(task.x_target, 2, 1))


def test_targets_in_another_order_give_predictions_in_that_order(model, task):
    order = torch.tensor([2, 0, 3, 1])
    posterior = adapted(model, task)
    for samples in (0, 2):
        before, after = (posterior.predict(x, samples, 1) for x in (task.x_target, task.x_target[order]))
        torch.testing.assert_close(after.functions, before.functions[:, order], **FLOAT32)


def test_a_target_is_predicted_alike_alone_and_among_others(model, task):
    posterior = adapted(model, task)
    for samples in (0, 2):
        all_points, one = (posterior.predict(x, samples, 1) for x in (task.x_target, task.x_target[1:2]))
        torch.testing.assert_close(all_points.functions[:, 1:2], one.functions, **FLOAT32)


def test_adapting_and_predicting_leave_the_model_and_the_global_random_state_alone(model, task):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    adapted(model, task).predict(task.x_target, 3)
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_samples_are_reproducible_from_a_seed(model, task):
    posterior = adapted(model, task)
    draws = [posterior.predict(task.x_target, 4, seed).functions for seed in (5, 5, 6)]
    again = posterior.predict(task.x_target, 4, torch.Generator().manual_seed(5)).functions
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], again)
    if not isinstance(posterior, PointPosterior):
        assert not torch.isclose(draws[0], draws[2]).all()


def test_every_sample_is_one_coherent_function(model, task):
    twice = task.x_target[[0, 0]]
    functions = adapted(model, task).predict(twice, 5).functions
    torch.testing.assert_close(functions[:, 0], functions[:, 1], **FLOAT32)


def test_sampled_functions_differ_unless_the_posterior_is_a_point(model, task):
    posterior = adapted(model, task)
    spread = posterior.predict(task.x_target, 8).spread
    assert spread.any() != isinstance(posterior, PointPosterior)


def test_precision_follows_the_model(model, task):
    single = adapted(model, task).predict(task.x_target, 2)
    assert single.functions.dtype == torch.float32
    model.double()
    double = model.adapt(task.x_context.double(), task.y_context.double()).predict(task.x_target.double())
    assert double.functions.dtype == double.stds.dtype == torch.float64
    close(
        type(double)(double.functions.float(), double.stds.float()),
        adapted(model.float(), task).predict(task.x_target),
    )


def test_shapes_of_predictions_follow_the_inputs(model, task, ragged_batch):
    alone = adapted(model, task)
    assert alone.predict(task.x_target).mean.shape == (4, 3)
    assert alone.predict(task.x_target, 7).functions.shape == (7, 4, 3)
    batch = ragged_batch(2, 3)
    together = model.adapt(batch.context)
    assert together.predict(batch.x).mean.shape == batch.y.shape
    assert together.predict(batch.x, 7).functions.shape == (7, *batch.y.shape)


@pytest.mark.parametrize("as_given", [torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.clone])
def test_lists_arrays_and_tensors_are_alike_with_and_without_a_task_axis(model, task, as_given):
    x, y, target = task.x_context, task.y_context, task.x_target
    expected = adapted(model, task).predict(target)
    close(model.adapt(as_given(x), as_given(y)).predict(as_given(target)), expected)
    stacked = [torch.stack([t, t + 1]) for t in (x, y, target)]
    batch = model.adapt(*map(as_given, stacked[:2])).predict(as_given(stacked[2]))
    assert batch.mean.shape == (2, 4, 3)
    torch.testing.assert_close(batch.mean[0], expected.mean, **FLOAT32)


def test_float64_arrays_are_taken_by_a_float32_model(model, task):
    x, y, target = (np.asarray(t, dtype=np.float64) for t in (task.x_context, task.y_context, task.x_target))
    prediction = model.adapt(x, y).predict(target)
    assert prediction.functions.dtype == torch.float32
    close(prediction, adapted(model, task).predict(task.x_target))


def test_encoding_once_equals_adapting_twice(model, ragged_batch):
    batch = ragged_batch(2, 3)
    for posterior, points in zip(model.adapt_both(batch), (batch.context, batch.whole), strict=True):
        alone = model.adapt(points)
        assert kl_divergence(posterior, alone).tolist() == pytest.approx([0.0] * 4, abs=1e-4)
        if points is batch.context or model.read(points) is None:
            close(posterior.predict(batch.x, 3, 1), alone.predict(batch.x, 3, 1))


def test_targets_read_the_context_alone_even_where_rates_know_the_whole_task(model, ragged_batch):
    batch = ragged_batch(2, 3)
    if model.read(batch.context) is None:
        return
    context, whole = model.adapt_both(batch)
    seen = [
        posterior.representation
        if posterior.rates is not None
        else (posterior.outputs.func if hasattr(posterior, "outputs") else posterior.network).read
        for posterior in (context, whole)
    ]
    assert torch.equal(seen[0](batch.x), seen[1](batch.x))
    assert not torch.allclose(seen[0](batch.x), model.read(batch.whole)(batch.x), atol=1e-3)


def test_kl_is_zero_between_posteriors_of_one_set_and_not_negative_otherwise(model, ragged_batch):
    batch = ragged_batch(2, 3)
    q, prior = model.adapt_both(batch)
    assert kl_divergence(q, model.adapt_both(batch)[0]).tolist() == [0.0] * 4
    assert (kl_divergence(q, prior) >= 0).all()
    if model_spec(model.config.name).objective != "likelihood":
        assert (kl_divergence(q, prior) > 0).all()


def test_a_task_without_targets_has_no_kl(model, make_task):
    all_context = TaskBatch.collate([make_task(5, 0, 2, 3), make_task(7, 0, 2, 3)])
    assert kl_divergence(*model.adapt_both(all_context)).tolist() == pytest.approx([0.0, 0.0], abs=1e-9)


def test_wrong_widths_are_refused_with_both_numbers(model, task):
    with pytest.raises(InputError, match=r"x has 3 features; this .* model takes 2"):
        model.adapt(torch.zeros(4, 3), task.y_context[:4])
    with pytest.raises(InputError, match=r"y has 1 features; this .* model takes 3"):
        model.adapt(task.x_context, torch.zeros(6, 1))
    with pytest.raises(InputError, match=r"expected \(points, 2\)"):
        adapted(model, task).predict(torch.zeros(4, 1))


def test_fixed_variance_is_one_and_a_learned_one_has_a_floor(model, task):
    stds = adapted(model, task).predict(task.x_target, 5).stds
    if model.config.likelihood.variance == "fixed":
        assert torch.equal(stds, torch.ones_like(stds))
    else:
        assert (stds > model.config.likelihood.min_std).all()
        assert stds.std() > 0


def test_dropout_rates_lie_inside_the_papers_interval(model, task):
    posterior = adapted(model, task)
    if isinstance(posterior, DropoutPosterior):
        for layer in posterior.rates:
            for p in (layer.weight(), layer.bias()):
                assert p.min() >= 0.01
                assert p.max() <= 0.99


def test_weights_come_from_the_seed_and_the_global_random_state_is_left_alone(model):
    state = torch.get_rng_state()
    same, other = build_model(model.config, 0), build_model(model.config, 1)
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(model.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_an_unknown_model_is_told_with_its_nearest():
    with pytest.raises(InputError, match="did you mean 'nvdp'"):
        model_spec("nvpd")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decoder.width": 0}, "'decoder.width' is 0"),
        ({"rates.width": 0}, "'rates.width' is 0"),
        ({"rates.layers": 0}, "'rates.layers' is 0"),
        ({"decoder.sees": "r"}, "'decoder.sees' is 'r'"),
    ],
)
def test_impossible_architectures_are_refused_by_name(changes, words):
    with pytest.raises(InputError, match=words):
        ModelConfig().updated(changes)
