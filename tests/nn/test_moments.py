"""Moments of a dropout network's outputs: exact where they can be, and close to those of many samples elsewhere."""

import pytest
import torch
from torch.nn import functional as F

from nvdp.nn.dropout import DropoutNetwork, SampledWeights
from nvdp.nn.moments import activation_moments, output_moments, relu_moments
from nvdp.nn.rates import LayerRates, RateBounds

SAMPLES = 20_000


def rates_of(network, level, generator, tasks=2):
    def expert(size):
        return (level * (0.5 + torch.rand(tasks, size, generator=generator))).clamp(max=1)

    return [LayerRates(expert(k), expert(d), torch.ones(tasks, 1), RateBounds()) for k, d in network.layer_shapes]


def test_one_layer_is_exact(generator):
    network = DropoutNetwork([3, 2], "relu")
    rates, x = rates_of(network, 0.5, generator), torch.randn(2, 5, 3, generator=generator)
    with torch.no_grad():
        mean, covariance = output_moments(network, x, rates)
        layer, p, p_bias = network.layers[0], rates[0].weight(), rates[0].bias()
        torch.testing.assert_close(mean, x @ ((1 - p) * layer.weight) + ((1 - p_bias) * layer.bias)[:, None])
        exact = x.square() @ (p * (1 - p) * layer.weight**2) + (p_bias * (1 - p_bias) * layer.bias**2)[:, None]
        torch.testing.assert_close(covariance.diagonal(), exact)
        assert covariance[0, 1].abs().max() == 0  # the weights of two outputs are independent


def test_gaussians_pass_a_relu_as_many_samples_do(generator):
    mean, variance = torch.linspace(-3, 3, 7)[None, None], torch.tensor(1.5).expand(1, 1, 7)
    z = mean + variance.sqrt() * torch.randn(400_000, 1, 7, generator=generator)
    passed = relu_moments(mean, variance)
    torch.testing.assert_close(passed.mean[0], F.relu(z).mean(0), atol=0.01, rtol=0.01)
    torch.testing.assert_close(passed.square[0], F.relu(z).square().mean(0), atol=0.03, rtol=0.02)
    torch.testing.assert_close(passed.slope[0], (z > 0).float().mean(0), atol=0.01, rtol=0.01)


def test_the_quadrature_knows_the_moments_of_a_square():
    mean, variance = torch.tensor([[[0.5, -2.0]]]), torch.tensor([[[0.3, 2.0]]])
    passed = activation_moments(torch.square, mean, variance)
    torch.testing.assert_close(passed.mean, mean**2 + variance)
    torch.testing.assert_close(passed.square, mean**4 + 6 * mean**2 * variance + 3 * variance**2)
    torch.testing.assert_close(passed.slope, 2 * mean)


@pytest.mark.parametrize("activation", ["relu", "silu", "leaky_relu"])
@pytest.mark.parametrize(("level", "mean_error", "std_error"), [(0.1, 0.05, 0.03), (0.5, 0.1, 0.12)])
def test_deep_networks_have_the_moments_of_many_sampled_ones(activation, level, mean_error, std_error, generator):
    network = DropoutNetwork([1, 32, 32, 2], activation)
    for layer in network.layers:
        torch.nn.init.normal_(layer.weight, std=(2 / layer.shape[0]) ** 0.5, generator=generator)
    rates, x = rates_of(network, level, generator), torch.linspace(-2, 2, 6)[None, :, None].expand(2, -1, -1)
    with torch.no_grad():
        mean, covariance = output_moments(network, x, rates)
        drawn = network(x, rates, SampledWeights(SAMPLES, generator))
    std, sampled = covariance.diagonal().sqrt(), drawn.std(0)
    assert ((mean - drawn.mean(0)) / sampled).square().mean().sqrt() < mean_error
    assert (std / sampled - 1).square().mean().sqrt() < std_error
    correlation = covariance[0, 1] / (std[..., 0] * std[..., 1])
    centred = drawn - drawn.mean(0)
    exact = (centred[..., 0] * centred[..., 1]).mean(0) / (sampled[..., 0] * sampled[..., 1])
    assert (correlation - exact).abs().max() < 0.15
