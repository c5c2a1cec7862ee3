"""The conditional-dropout layer, eq. 2: weights N((1−P) θ, P(1−P) θ²), and three ways through it.

* :class:`MeanWeights`: the mean of the weights, no noise;
* :class:`SampledWeights`: weights drawn once per task and sample, shared by all points, so that each sample is one
  coherent function;
* :class:`LocalNoise`: the local reparameterisation, noise on each point's pre-activation. Lower gradient variance,
  used for training; its outputs are *not* function samples, as every point has its own noise.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nvdp.nn.fused import VARIANCE_FLOOR
from nvdp.nn.mlp import AS_GIVEN, InputScale, activated, activation_named, fan_in_uniform
from nvdp.nn.products import affine
from nvdp.nn.rates import LayerRates
from nvdp.randomness import standard_normal, tabled_normal


class DropoutLinear(nn.Module):
    """The shared parameters θ of one layer: a K × D weight matrix and a bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = fan_in_uniform(inputs, outputs, fan_in=inputs)
        self.bias = fan_in_uniform(outputs, fan_in=inputs)

    @property
    def shape(self) -> tuple[int, int]:
        """(K, D)."""
        return self.weight.shape[0], self.weight.shape[1]


class WayThrough(Protocol):
    """How inputs of shape (*sample, task, point, k) pass through a layer with given rates."""

    def __call__(self, layer: DropoutLinear, inputs: Tensor, rates: LayerRates) -> Tensor:
        """Pre-activations of shape (*sample, task, point, d)."""
        ...


class MeanWeights:
    """A (1−P)θ: the layer with its mean weights."""

    def __call__(
        self, layer: DropoutLinear, inputs: Float[Tensor, "task point k"], rates: LayerRates
    ) -> Float[Tensor, "task point d"]:
        """Mean pre-activations."""
        device = inputs.device.type
        if torch.is_autocast_enabled(device) and rates.rows.dtype == torch.float32:
            rates = rates.to(torch.get_autocast_dtype(device))  # half the memory for the weights of every task
        weight, bias = rates.keep()
        theta, of_bias = layer.weight.to(weight.dtype), layer.bias.to(weight.dtype)
        return affine(inputs, weight * theta if torch.is_grad_enabled() else weight.mul_(theta), bias * of_bias)


class SampledWeights:
    """φ = (1−P)θ + √(P(1−P)) θ ε with one ε per task, sample and weight."""

    def __init__(self, samples: int, generator: torch.Generator | None = None) -> None:
        self.samples, self.generator = samples, generator

    def __call__(
        self, layer: DropoutLinear, inputs: Float[Tensor, "*sample task point k"], rates: LayerRates
    ) -> Float[Tensor, "sample task point d"]:
        """Pre-activations of each sampled function."""
        weight = self._draw(layer.weight, rates.weight())
        bias = self._draw(layer.bias, rates.bias())
        return inputs @ weight + bias.unsqueeze(-2)

    def _draw(self, theta: Tensor, rate: Tensor) -> Tensor:
        noise = standard_normal((self.samples, *rate.shape), rate, self.generator)
        return torch.addcmul((1 - rate) * theta, (rate * (1 - rate)).sqrt() * theta, noise)


def local_moments(
    layer: DropoutLinear, inputs: Float[Tensor, "task point k"], rates: LayerRates
) -> tuple[Float[Tensor, "task point d"], Float[Tensor, "task point d"]]:
    """Mean A(1−P)θ and standard deviation √(A² P(1−P)θ²) of every pre-activation."""
    mean_weight, mean_bias = (1 - rates.weight()) * layer.weight, (1 - rates.bias()) * layer.bias
    # P(1−P)θ² = ((1−P)θ) · (Pθ) = mean · (θ − mean)
    variance_weight = mean_weight * (layer.weight - mean_weight)
    variance_bias = mean_bias * (layer.bias - mean_bias)
    mean = torch.baddbmm(mean_bias[:, None], inputs, mean_weight)
    variance = torch.baddbmm(variance_bias[:, None], inputs.square(), variance_weight)
    # All terms are non-negative; the tiny floor keeps the gradient of √ finite where an input is zero.
    return mean, (variance + VARIANCE_FLOOR).sqrt()


def local_noise(
    layer: DropoutLinear,
    inputs: Float[Tensor, "task point k"],
    rates: LayerRates,
    noise: Float[Tensor, "task point d"],
) -> Float[Tensor, "task point d"]:
    """A(1−P)θ + √(A² P(1−P)θ²) ∘ noise by plain autograd: the reference for every faster way."""
    return torch.addcmul(*local_moments(layer, inputs, rates), noise)


def with_noise(
    mean: Float[Tensor, "*shape"], std: Float[Tensor, "*shape"], generator: torch.Generator | None
) -> Float[Tensor, "*shape"]:
    """A draw from N(mean, std²)."""
    return torch.addcmul(mean, std, standard_normal(mean.shape, mean, generator))


LocalNoiseFunction = Callable[[DropoutLinear, Tensor, LayerRates, Tensor], Tensor]


class LocalNoise:
    """B ~ N(A (1−P)θ, A² P(1−P)θ²), drawn for every point on its own."""

    def __init__(self, generator: torch.Generator | None = None, compute: LocalNoiseFunction = local_noise) -> None:
        self.generator, self.compute = generator, compute

    def __call__(
        self, layer: DropoutLinear, inputs: Float[Tensor, "task point k"], rates: LayerRates
    ) -> Float[Tensor, "task point d"]:
        """Noisy pre-activations."""
        shape = (*inputs.shape[:-1], layer.shape[1])
        return self.compute(layer, inputs, rates, tabled_normal(shape, inputs, self.generator))


class DropoutNetwork(nn.Module):
    """The agent: conditional-dropout layers with an activation between them."""

    def __init__(self, sizes: Sequence[int], activation: str, scale: InputScale = AS_GIVEN) -> None:
        super().__init__()
        self.activation, self.scale = activation_named(activation), scale
        self.layers = nn.ModuleList(DropoutLinear(k, d) for k, d in itertools.pairwise(sizes))

    @property
    def layer_shapes(self) -> list[tuple[int, int]]:
        """(K, D) of every layer."""
        return [layer.shape for layer in self.dropout_layers()]

    def dropout_layers(self) -> Iterable[DropoutLinear]:
        """The layers, from input to output."""
        return cast(Iterable[DropoutLinear], self.layers)

    def inputs(
        self, x: Float[Tensor, "task point x"], seen: Float[Tensor, "task *point r"] | None = None
    ) -> Float[Tensor, "task point inputs"]:
        """What the first layer sees of each point: x, and what is given for the task or for the point beside it."""
        h = self.scale(x)
        if seen is None:
            return h
        by_point = seen[:, None].expand(-1, x.shape[1], -1) if seen.dim() == 2 else seen
        return torch.cat([h, by_point], dim=-1)

    def hidden(
        self,
        x: Float[Tensor, "task point x"],
        rates: Sequence[LayerRates],
        way: WayThrough,
        seen: Float[Tensor, "task *point r"] | None = None,
    ) -> Float[Tensor, "*sample task point k"]:
        """What the last layer sees of each point."""
        h = self.inputs(x, seen)
        for layer, layer_rates in zip(list(self.dropout_layers())[:-1], rates[:-1], strict=True):
            h = activated(self.activation, way(layer, h, layer_rates))
        return h

    def forward(
        self,
        x: Float[Tensor, "task point x"],
        rates: Sequence[LayerRates],
        way: WayThrough,
        seen: Float[Tensor, "task *point r"] | None = None,
    ) -> Float[Tensor, "*sample task point outputs"]:
        """Outputs at x, or at (x, r) if the network sees a representation too."""
        return way(list(self.dropout_layers())[-1], self.hidden(x, rates, way, seen), rates[-1])
