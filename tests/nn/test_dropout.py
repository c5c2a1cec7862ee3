"""The three ways through a layer against the closed-form moments of its pre-activation."""

import pytest
import torch

from nvdp.nn.dropout import DropoutLinear, DropoutNetwork, LocalNoise, MeanWeights, SampledWeights
from nvdp.nn.rates import LayerRates, RateBounds

SAMPLES = 20_000


@pytest.fixture
def layer():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return DropoutLinear(3, 2).double().requires_grad_(False)


@pytest.fixture
def inputs(generator):
    return torch.randn(1, 4, 3, generator=generator, dtype=torch.float64)


@pytest.fixture
def rates(generator):
    experts = [0.3 + 0.7 * torch.rand(1, n, generator=generator, dtype=torch.float64) for n in (3, 2, 1)]
    return LayerRates(*experts, RateBounds())


def closed_form(layer, inputs, rates):
    """Mean and variance of each pre-activation of the task, from eq. 2."""
    p, p_bias = rates.weight()[0], rates.bias()[0]
    mean = inputs[0] @ ((1 - p) * layer.weight) + (1 - p_bias) * layer.bias
    variance = inputs[0] ** 2 @ (p * (1 - p) * layer.weight**2) + p_bias * (1 - p_bias) * layer.bias**2
    return mean, variance


def many(way, layer, inputs, rates, generator):
    """Draws of the pre-activations of one task, (sample, point, d)."""
    if way is SampledWeights:
        return SampledWeights(SAMPLES, generator)(layer, inputs, rates)[:, 0]
    repeated = LayerRates(*(t.expand(SAMPLES, -1) for t in (rates.rows, rates.columns, rates.layer)), rates.bounds)
    return LocalNoise(generator)(layer, inputs.expand(SAMPLES, -1, -1), repeated)


def test_mean_weights_give_the_closed_form_mean(layer, inputs, rates):
    torch.testing.assert_close(MeanWeights()(layer, inputs, rates)[0], closed_form(layer, inputs, rates)[0])


@pytest.mark.parametrize("way", [SampledWeights, LocalNoise])
def test_noisy_ways_have_the_closed_form_mean_and_variance(way, layer, inputs, rates, generator):
    draws = many(way, layer, inputs, rates, generator)
    mean, variance = closed_form(layer, inputs, rates)
    assert ((draws.mean(0) - mean).abs() < 4.5 * (variance / SAMPLES).sqrt()).all()
    assert ((draws.var(0) - variance).abs() < 4.5 * variance * (2 / SAMPLES) ** 0.5).all()


def test_mean_weights_are_the_average_of_sampled_weights(layer, inputs, rates, generator):
    draws = many(SampledWeights, layer, inputs, rates, generator)
    error = draws.std(0) / SAMPLES**0.5
    assert ((draws.mean(0) - MeanWeights()(layer, inputs, rates)[0]).abs() < 4.5 * error).all()


def test_only_sampled_weights_correlate_points_and_as_the_closed_form_says(layer, inputs, rates, generator):
    p, p_bias = rates.weight()[0], rates.bias()[0]
    first, second = inputs[0, 0], inputs[0, 1]
    expected = (first * second) @ (p * (1 - p) * layer.weight**2) + p_bias * (1 - p_bias) * layer.bias**2
    _, variance = closed_form(layer, inputs, rates)
    error = ((variance[0] * variance[1] + expected**2) / SAMPLES).sqrt()

    def covariance(way):
        centred = many(way, layer, inputs, rates, generator)
        centred = centred - centred.mean(0)
        return (centred[:, 0] * centred[:, 1]).mean(0)

    assert (expected.abs() > 10 * error).any()
    assert ((covariance(SampledWeights) - expected).abs() < 4.5 * error).all()
    assert (covariance(LocalNoise).abs() < 4.5 * error).all()


def test_equal_inputs_share_a_weight_sample_but_not_local_noise(layer, inputs, rates, generator):
    twice = inputs[:, [0, 0]]
    coherent = SampledWeights(7, generator)(layer, twice, rates)
    assert torch.equal(coherent[..., 0, :], coherent[..., 1, :])
    assert not torch.isclose(coherent[0], coherent[1]).any()
    noisy = LocalNoise(generator)(layer, twice, rates)
    assert not torch.isclose(noisy[:, 0], noisy[:, 1]).any()


def test_tasks_of_a_batch_have_independent_weight_samples(layer, inputs, rates, generator):
    two = LayerRates(*(t.expand(2, -1) for t in (rates.rows, rates.columns, rates.layer)), rates.bounds)
    draws = SampledWeights(1, generator)(layer, inputs.expand(2, -1, -1), two)
    assert not torch.isclose(draws[0, 0], draws[0, 1]).any()


def test_local_noise_has_a_finite_gradient_at_an_input_of_zero(layer, rates, generator):
    zero = torch.zeros(1, 1, 3, dtype=torch.float64, requires_grad=True)
    layer.bias.zero_()
    layer.requires_grad_(True)
    LocalNoise(generator)(layer, zero, rates).sum().backward()
    for gradient in (zero.grad, layer.weight.grad, layer.bias.grad):
        assert torch.isfinite(gradient).all()


def test_gradient_of_local_noise_agrees_with_finite_differences(layer, inputs, rates):
    def outputs(weight, bias, rows, columns):
        own = DropoutLinear(3, 2).double()
        del own.weight, own.bias
        own.weight, own.bias = weight, bias
        own_rates = LayerRates(rows, columns, rates.layer, rates.bounds)
        return LocalNoise(torch.Generator().manual_seed(0))(own, inputs, own_rates)

    parts = (layer.weight, layer.bias, rates.rows, rates.columns)
    assert torch.autograd.gradcheck(outputs, [t.clone().requires_grad_() for t in parts])


@pytest.mark.parametrize("way", [MeanWeights(), SampledWeights(1), LocalNoise()])
def test_a_network_without_dropout_is_the_plain_network(way):
    network = DropoutNetwork([2, 8, 8, 3], "silu")
    shapes = network.layer_shapes
    assert shapes == [(2, 8), (8, 8), (8, 3)]
    almost_zero = [
        LayerRates(torch.zeros(4, k), torch.zeros(4, d), torch.zeros(4, 1), RateBounds("affine", 1e-12))
        for k, d in shapes
    ]
    x = torch.randn(4, 5, 2)
    h = x
    for index, layer in enumerate(network.layers):
        h = (torch.nn.functional.silu(h) if index else h) @ layer.weight + layer.bias
    out = network(x, almost_zero, way).reshape(4, 5, 3)
    torch.testing.assert_close(out, h, atol=1e-3, rtol=1e-3)


def test_theta_starts_fan_in_uniform():
    layer = DropoutLinear(25, 400)
    for theta in (layer.weight, layer.bias):
        assert theta.abs().max() <= 0.2
        assert theta.abs().max() > 0.19
