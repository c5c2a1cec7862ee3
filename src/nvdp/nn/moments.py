"""Mean and covariance of a dropout network's outputs at single points, in closed form: eq. 2 without sampling.

Given its inputs, a layer's pre-activations are independent Gaussians (`local_moments`). Their noise reaches the outputs
through all later layers. There each activation a is replaced by its best linear fit over its Gaussian input z:
a(z) ≈ E a(z) + E[a′(z)] (z − E z). The variance of a that the fit does not explain is added as independent noise.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.special import ndtr

from nvdp.nn.dropout import VARIANCE_FLOOR, DropoutNetwork
from nvdp.nn.mlp import Activation
from nvdp.nn.rates import LayerRates

NODES = 9  # of the quadrature, for activations without a closed form here
# Denormal float32 numbers are about a hundred times slower. So a ReLU whose mean is FAR standard deviations from 0
# counts as fully on or off, and slopes below LEAST_SLOPE count as 0.
FAR, LEAST_SLOPE = 6.0, 1e-6


@dataclass(frozen=True)
class ActivationMoments:
    """Moments of an activation of a Gaussian: E a, E a², and the slope E a′ of its linear fit."""

    mean: Float[Tensor, "task point k"]
    square: Float[Tensor, "task point k"]
    slope: Float[Tensor, "task point k"]


def relu_moments(mean: Float[Tensor, "task point k"], variance: Float[Tensor, "task point k"]) -> ActivationMoments:
    """E max(z, 0), E max(z, 0)² and P(z > 0)."""
    std = variance.sqrt()
    ratio = (mean / std).clamp_(-FAR, FAR)
    above = ndtr(ratio)
    edge = std * torch.exp(-0.5 * ratio.square()) * (1 / math.sqrt(2 * math.pi))
    passed = torch.addcmul(edge, mean, above)
    square = torch.addcmul(variance * above, mean, passed)
    return ActivationMoments(passed, square, F.threshold(above, LEAST_SLOPE, 0.0))


def activation_moments(
    activation: Activation, mean: Float[Tensor, "task point k"], variance: Float[Tensor, "task point k"]
) -> ActivationMoments:
    """The same for any activation, by Gauss–Hermite quadrature."""
    nodes, weights = (torch.as_tensor(part, dtype=mean.dtype, device=mean.device) for part in _hermite())
    with torch.enable_grad():
        z = torch.addcmul(mean, variance.sqrt(), nodes[:, None, None, None]).requires_grad_()
        values = activation(z)
        (slopes,) = torch.autograd.grad(values.sum(), z)
    values = values.detach()
    averages = (torch.tensordot(weights, part, 1) for part in (values, values.square(), slopes))
    return ActivationMoments(*averages)


@cache
def _hermite() -> tuple[Sequence[float], Sequence[float]]:
    from numpy.polynomial.hermite_e import hermegauss

    nodes, weights = hermegauss(NODES)
    return nodes.tolist(), (weights / weights.sum()).tolist()


def moments_through(activation: Activation) -> Callable[[Tensor, Tensor], ActivationMoments]:
    """The function (mean, variance) ↦ moments of an activation."""
    if activation is F.relu:
        return relu_moments
    return lambda mean, variance: activation_moments(activation, mean, variance)


def output_moments(
    network: DropoutNetwork,
    x: Float[Tensor, "task point x"],
    rates: Sequence[LayerRates],
    seen: Float[Tensor, "task *point r"] | None = None,
) -> tuple[Float[Tensor, "task point output"], Float[Tensor, "output output task point"]]:
    """Mean and covariance of the outputs at every point.

    Args:
        network: the dropout network.
        x: points of each task.
        rates: dropout rates of every layer.
        seen: features beside x, as in `DropoutNetwork.forward`.

    Returns:
        Means (task, point, output) and covariances (output, output, task, point).

    >>> from nvdp.nn.rates import RateBounds
    >>> network = DropoutNetwork([1, 2], "relu")
    >>> rates = LayerRates(torch.ones(1, 1), torch.ones(1, 2), torch.full((1, 1), 0.5), RateBounds())
    >>> with torch.no_grad():
    ...     mean, covariance = output_moments(network, torch.tensor([[[2.0]]]), [rates])
    ...     exact = 0.25 * (4 * network.layers[0].weight[0] ** 2 + network.layers[0].bias ** 2)
    >>> torch.allclose(covariance[..., 0, 0].diag(), exact, atol=1e-6)
    True
    """
    through = moments_through(network.activation)
    inputs = network.inputs(x, seen)
    mean, square, variance = inputs, inputs.square(), torch.zeros_like(inputs)
    sources: list[
        tuple[Tensor, Tensor, Tensor, Tensor]
    ] = []  # of each layer: mean weights, noise variance, unexplained input variance, slope of its inputs
    left = slope = variance
    for index, (layer, layer_rates) in enumerate(zip(network.dropout_layers(), rates, strict=True)):
        if index:
            passed = through(mean, variance)
            left = torch.addcmul(passed.square, passed.mean, passed.mean, value=-1).clamp_(min=0)
            mean, square, slope, kept = passed.mean, passed.square, passed.slope, passed.slope.square() * variance
            variance, left = left, (left - kept).clamp_(min=0)
        weight, bias = (1 - layer_rates.weight()) * layer.weight, (1 - layer_rates.bias()) * layer.bias
        # P(1−P)θ² = ((1−P)θ) · (Pθ) = mean · (θ − mean)
        noise = torch.baddbmm((bias * (layer.bias - bias))[:, None], square, weight * (layer.weight - weight))
        sources.append((weight, noise, left, slope))
        # Input variances of activations are as if units were independent; the outputs' covariance does not assume it.
        variance = torch.baddbmm(noise, variance, weight.square()) + VARIANCE_FLOOR
        mean = torch.baddbmm(bias[:, None], mean, weight)
    return mean, _output_covariance(sources, mean.shape[-1])


def _output_covariance(
    sources: list[tuple[Tensor, Tensor, Tensor, Tensor]], outputs: int
) -> Float[Tensor, "output output task point"]:
    """Σ J diag(variance) Jᵀ over all sources of noise, where J is the Jacobian of the outputs by a source."""
    tasks, points = sources[-1][1].shape[:2]
    covariance = torch.diag_embed(sources[-1][1]).movedim((-2, -1), (0, 1))
    derivative: Tensor | None = None  # of the outputs by a layer's pre-activations: (output, task, point, d)
    for weight, noise, left, slope in reversed(sources):
        if derivative is not None:
            covariance = covariance + _sandwich(derivative, noise)
            # The outputs are more points of a task: a product with an output dimension of its own copies the weights.
            rows = derivative.movedim(0, 1).flatten(1, 2)
            by_inputs = torch.bmm(rows, weight.mT).unflatten(1, (outputs, points)).movedim(1, 0)
        else:
            by_inputs = weight.movedim(-1, 0)[:, :, None].expand(outputs, tasks, points, -1)
        if weight is sources[0][0]:
            break
        covariance = covariance + _sandwich(by_inputs, left)
        derivative = by_inputs * slope
    return covariance


def _sandwich(derivative: Float[Tensor, "output task point k"], variance: Float[Tensor, "task point k"]) -> Tensor:
    weighted = derivative * variance
    return torch.stack([torch.linalg.vecdot(row, derivative) for row in weighted])
