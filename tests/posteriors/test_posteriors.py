import pytest
import torch
from torch.distributions import Normal, kl_divergence

from nvdp.errors import InputError
from nvdp.models.registry import build_model
from nvdp.posteriors.base import NUMBERS_AT_ONCE, groups_of
from nvdp.posteriors.dropout import DropoutPosterior


def dropout_normal(theta, p):
    """Eq. 2 as PyTorch's own distribution."""
    return Normal((1 - p) * theta, (p * (1 - p)).sqrt() * theta.abs())


@pytest.fixture
def nvdp_pair(small_config, ragged_batch):
    """q(φ | D_C), q(φ | D) of a float64 NVDP on four tasks."""
    model = build_model(small_config("nvdp")).double()
    with torch.no_grad():
        return model.adapt_both(ragged_batch(dtype=torch.float64))


def test_posterior_kl_sums_over_every_weight_and_bias(nvdp_pair):
    q, prior = nvdp_pair
    expected = torch.zeros(4, dtype=torch.float64)
    for layer, ours, theirs in zip(q.network.layers, q.rates, prior.rates, strict=True):
        for theta, p, p_hat in [
            (layer.weight, ours.weight(), theirs.weight()),
            (layer.bias, ours.bias(), theirs.bias()),
        ]:
            kl = kl_divergence(dropout_normal(theta, p), dropout_normal(theta, p_hat))
            expected += kl.flatten(1).sum(1).detach()
    torch.testing.assert_close(kl_divergence(q, prior), expected)


def test_size_of_a_dropout_posterior_counts_every_weight_and_bias(nvdp_pair):
    q, _ = nvdp_pair
    assert q.size == sum(theta.numel() for theta in q.network.parameters())


def test_mean_rates_are_the_means_of_the_weight_rates(nvdp_pair):
    q, _ = nvdp_pair
    expected = torch.stack([layer.weight().mean((-2, -1)) for layer in q.rates], -1)
    torch.testing.assert_close(q.mean_rates(), expected)


def test_latent_kl_is_the_kl_of_two_normals(small_config, ragged_batch):
    model = build_model(small_config("np", {"decoder.latent": 3})).double()
    q, prior = model.adapt_both(ragged_batch(dtype=torch.float64))
    torch.testing.assert_close(kl_divergence(q, prior), kl_divergence(q.latent, prior.latent).sum(-1))
    assert q.size == 3


def test_a_method_that_was_renamed_is_refused_with_its_new_name(nvdp_pair):
    with pytest.raises(TypeError, match="Own has a method _without_sampling; the name is closed_form now"):
        type("Own", (DropoutPosterior,), {"_without_sampling": lambda self, x: None})
    q, prior = nvdp_pair
    with pytest.raises(AttributeError, match="no with_known_part_of; the name is with_deterministic_path_of now"):
        q.with_known_part_of(prior)
    with pytest.raises(AttributeError, match="'DropoutPosterior' object has no attribute 'closed_from'"):
        _ = q.closed_from


def test_nothing_of_a_single_function_is_random(small_config, ragged_batch):
    assert build_model(small_config("cnp")).adapt(ragged_batch().context).size == 0


def test_weights_sampled_in_groups_follow_the_same_distribution(nvdp_pair, monkeypatch):
    q, _ = nvdp_pair
    x = torch.zeros(4, 1, 1, dtype=torch.float64)
    n = 4000
    together = q.sampled_outputs(x, n, torch.Generator().manual_seed(1))
    monkeypatch.setattr("nvdp.posteriors.base.NUMBERS_AT_ONCE", 4 * 64 * 100)
    grouped = q.sampled_outputs(x, n, torch.Generator().manual_seed(2))
    assert grouped.shape == together.shape
    error = ((together.var(0) + grouped.var(0)) / n).sqrt()
    assert ((together.mean(0) - grouped.mean(0)).abs() < 5 * error).all()


@pytest.mark.parametrize("name", ["nvdp", "np", "cnp"])
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(5, 2), r"x has shape \(5, 2\); expected \(points, 1\) or \(4, points, 1\)"),
        (torch.zeros(3, 5, 1), r"x has shape \(3, 5, 1\)"),
        (torch.tensor([[0.0], [torch.nan]]), r"x holds nan at index \(1, 0\)"),
        ("here", "^x is not an array of numbers"),
    ],
)
def test_inputs_to_predict_at_are_checked(small_config, ragged_batch, name, x, words):
    posterior = build_model(small_config(name)).adapt(ragged_batch().context)
    with pytest.raises(InputError, match=words):
        posterior.predict(x)


def test_points_without_a_task_axis_are_predicted_under_every_task(nvdp_pair):
    q, _ = nvdp_pair
    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    torch.testing.assert_close(q.predict(x).mean, q.predict(x[:, None].expand(4, 5, 1)).mean)


def test_groups_of_samples_hold_as_many_as_fit_and_at_least_one():
    assert groups_of(3, 2 * NUMBERS_AT_ONCE) == [1, 1, 1]
    assert groups_of(NUMBERS_AT_ONCE + 1, 1) == [NUMBERS_AT_ONCE, 1]
    assert groups_of(NUMBERS_AT_ONCE, 0) == [NUMBERS_AT_ONCE]


def test_inputs_are_taken_to_the_precision_of_the_model(nvdp_pair):
    q, _ = nvdp_pair
    exact = q.predict(torch.tensor([0.5, 0.25], dtype=torch.float64))
    for x in ([0.5, 0.25], torch.tensor([0.5, 0.25], dtype=torch.float32)):
        prediction = q.predict(x, 0)
        assert prediction.mean.dtype == torch.float64
        assert torch.equal(prediction.mean, exact.mean)


def test_samples_are_drawn_from_seed_0_unless_told_otherwise(nvdp_pair):
    q, _ = nvdp_pair
    x = torch.linspace(-1, 1, 5)
    assert torch.equal(q.predict(x, 3).functions, q.predict(x, 3, 0).functions)
    assert not torch.equal(q.predict(x, 3).functions, q.predict(x, 3, 1).functions)
    with pytest.raises(InputError, match=r"^samples is -1; expected a whole number of at least 0$"):
        q.predict(x, -1)


def test_components_of_sampled_weights_are_the_functions_themselves(nvdp_pair):
    q, _ = nvdp_pair
    x = torch.linspace(-1, 1, 5)
    components = q.components(x, 3, 1)
    assert components.coherent
    assert torch.equal(components.functions, q.predict(x, 3, 1).functions)


@pytest.mark.parametrize("name", ["nvdp", "np", "cnp"])
def test_only_a_posterior_of_one_task_given_without_a_task_axis_predicts_without_one(small_config, ragged_batch, name):
    model, batch = build_model(small_config(name)), ragged_batch()
    q_context, q_task = model.adapt_both(batch)
    assert q_task.with_deterministic_path_of(q_context).predict(torch.zeros(5, 1)).mean.shape == (4, 5, 1)
    assert model.adapt([0.0, 1.0], [1.0, 0.0]).predict(torch.zeros(5, 1)).mean.shape == (5, 1)


def test_masked_points_are_neither_learnt_nor_forgotten(small_config, make_task):
    model = build_model(small_config("nvdp")).eval().requires_grad_(False)
    task = make_task(3, 4)
    x, y, mask = task.x_target, task.y_target, torch.tensor([True, False, True, False])
    few = model.adapt(task.x_context, task.y_context)
    more = few.update(x[mask], y[mask])
    learnt, forgotten = few.update(x, y, mask[None]), more.forget(x, y, mask[None])
    for ours, theirs in ((learnt, more), (forgotten, few)):
        torch.testing.assert_close(ours.predict([0.0, 1.0]).mean, theirs.predict([0.0, 1.0]).mean)


def test_a_posterior_without_memory_says_so(nvdp_pair):
    q, _ = nvdp_pair
    q.memory = None
    for learn in (q.update, q.forget):
        with pytest.raises(InputError, match=r"^this posterior keeps no memory of its context; adapt .* together$"):
            learn([0.0], [1.0])


def test_one_candidate_is_suggested_for_each_task_from_seed_0_unless_told_otherwise(nvdp_pair):
    q, _ = nvdp_pair
    candidates = torch.linspace(-2, 2, 200)
    chosen = q.suggest(candidates, samples=2)
    assert chosen.shape == (4, 1)
    assert torch.equal(chosen, q.suggest(candidates, 1, "spread", 2, 0))
    assert not torch.equal(chosen, q.suggest(candidates, samples=2, seed=1))


@pytest.mark.parametrize("decoder_sees", ["x", "x,r"])
def test_local_noise_gives_each_point_the_distribution_of_sampled_weights(small_config, make_task, decoder_sees):
    model = build_model(small_config("nvdp", {"decoder.sees": decoder_sees})).double().requires_grad_(False)
    task, n = make_task(5, 0, dtype=torch.float64), 20_000
    q = model.adapt(task.x_context, task.y_context)
    points = torch.full((1, n, 1), 0.7, dtype=torch.float64)
    local = q.training_outputs(points, torch.Generator().manual_seed(1))[0]
    sampled = q.sampled_outputs(points[:, :1], n, torch.Generator().manual_seed(2))[:, 0, 0]
    error = ((local.var(0) + sampled.var(0)) / n).sqrt()
    assert ((local.mean(0) - sampled.mean(0)).abs() < 5 * error).all()
    torch.testing.assert_close(local.std(0), sampled.std(0), rtol=0.04, atol=0)


def test_points_share_one_draw_of_the_weights_in_training_only_where_local_noise_is_off(nvdp_pair):
    q, _ = nvdp_pair
    x = torch.full((4, 3, 1), 0.7, dtype=torch.float64)
    parts = (q.rates, q.network, q.likelihood)
    local, shared = (DropoutPosterior(*parts, x_dim=1, local_noise=local) for local in (True, False))
    first, second, other = (shared.training_outputs(x, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert first.shape == (4, 3, 2)
    torch.testing.assert_close(first, first[:, :1].expand_as(first))
    assert torch.equal(first, second)
    assert not torch.isclose(first, other).any()
    assert (local.training_outputs(x, torch.Generator().manual_seed(1)).std(1) > 1e-6).all()
