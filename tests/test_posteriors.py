import pytest
import torch
from torch.distributions import Normal, kl_divergence

from nvdp.errors import InputError
from nvdp.models.registry import build_model


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
    model = build_model(small_config("np")).double()
    q, prior = model.adapt_both(ragged_batch(dtype=torch.float64))
    torch.testing.assert_close(kl_divergence(q, prior), kl_divergence(q.latent, prior.latent).sum(-1))
    assert q.size == 4


def test_weights_sampled_in_groups_follow_the_same_distribution(nvdp_pair, monkeypatch):
    q, _ = nvdp_pair
    x = torch.zeros(4, 1, 1, dtype=torch.float64)
    n = 4000
    together = q.sampled_outputs(x, n, torch.Generator().manual_seed(1))
    monkeypatch.setattr("nvdp.posteriors.NUMBERS_AT_ONCE", 4 * 64 * 100)
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
