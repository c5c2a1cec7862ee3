"""The conditional-dropout layer, eq. 2: weights N((1−P) θ, P(1−P) θ²). Three objects compute its outputs.

* :class:`MeanWeights`: the mean of the weights, no noise;
* :class:`SampledWeights`: weights drawn once per task and sample, shared by all points, so that each sample is one
  coherent function;
* :class:`LocalNoise`: the local reparameterisation, noise on each point's pre-activation. Its gradients have a lower
  variance, so it is used for training. Its outputs are *not* function samples, as every point has its own noise.

:func:`local_noise` is the plain autograd version; :mod:`nvdp.nn.fused` computes the same faster.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nvdp.nn.mlp import AS_GIVEN, InputScale, activated, activation_named, fan_in_uniform
from nvdp.nn.rates import LayerRates, RateBounds
from nvdp.randomness import standard_normal, tabled_normal

VARIANCE_FLOOR = 1e-10  # keeps the gradient of √ finite where an input is zero
NARROW = 8  # columns up to which a product is faster transposed


class DropoutLinear(nn.Module):
    """The shared parameters θ of one layer: a K × D weight matrix and a bias.

    Args:
        inputs: K.
        outputs: D.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = fan_in_uniform(inputs, outputs, fan_in=inputs)
        self.bias = fan_in_uniform(outputs, fan_in=inputs)

    @property
    def shape(self) -> tuple[int, int]:
        """(K, D)."""
        return self.weight.shape[0], self.weight.shape[1]


class LayerForward(Protocol):
    """Computes the pre-activations of a layer with given rates: mean weights, sampled weights or local noise."""

    def __call__(self, layer: DropoutLinear, inputs: Tensor, rates: LayerRates) -> Tensor:
        """From inputs (*sample, task, point, k) to pre-activations (*sample, task, point, d)."""
        ...


def affine(
    inputs: Float[Tensor, "task point k"], weight: Float[Tensor, "task k d"], bias: Float[Tensor, "task d"]
) -> Float[Tensor, "task point d"]:
    """A W + b of every task, in the layout in which the product is fast.

    A product whose result has few columns takes several times as long as the same one transposed, with few rows.

    >>> affine(torch.ones(1, 3, 2), torch.ones(1, 2, 1), torch.ones(1, 1))[0, :, 0]
    tensor([3., 3., 3.])
    """
    if weight.shape[-1] > NARROW:
        return torch.bmm(inputs, weight).add_(bias[:, None])  # baddbmm would first write the bias to every row
    transposed = torch.baddbmm(bias[:, :, None], weight.mT.contiguous(), inputs.mT)
    return transposed.mT.clone(memory_format=torch.contiguous_format)  # not a view: callers work in place


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
    """φ = (1−P)θ + √(P(1−P)) θ ε with one ε per task, sample and weight.

    Args:
        samples: functions to draw for each task.
        generator: source of ε; PyTorch's own if None.
    """

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
    return mean, (variance + VARIANCE_FLOOR).sqrt()


def local_noise(
    layer: DropoutLinear,
    inputs: Float[Tensor, "task point k"],
    rates: LayerRates,
    noise: Float[Tensor, "task point d"],
) -> Float[Tensor, "task point d"]:
    """A(1−P)θ + √(A² P(1−P)θ²) ∘ noise by plain autograd: the reference for faster versions."""
    return torch.addcmul(*local_moments(layer, inputs, rates), noise)


def target_basis(
    layer: DropoutLinear,
    inputs: Float[Tensor, "*sample task point k"],
    rows: Float[Tensor, "task point k"],
    columns: Float[Tensor, "task y"],
    bounds: RateBounds,
) -> Float[Tensor, "*sample task y point weight"]:
    """A √(P(1−P)) θ with rates P of each point, by plain autograd: the basis functions of the layer's weight noise.

    Args:
        layer: θ; its first columns are used.
        inputs: A.
        rows: s(a) of each point.
        columns: s(b) s(c) of these columns.
        bounds: Of P.

    Returns:
        One basis function for each weight; the last one is the bias, whose input and row expert are 1.
    """
    weights = torch.cat([layer.weight, layer.bias[None]])[:, : columns.shape[1]].mT  # (y, weight)
    inputs, rows = (torch.cat([part, torch.ones_like(part[..., :1])], dim=-1) for part in (inputs, rows))
    rates = bounds(rows[:, None] * columns[..., None, None])  # (task, y, point, weight)
    return inputs.unsqueeze(-3) * ((rates * (1 - rates) + VARIANCE_FLOOR).sqrt() * weights[:, None])


def with_noise(
    mean: Float[Tensor, "*shape"], std: Float[Tensor, "*shape"], generator: torch.Generator | None
) -> Float[Tensor, "*shape"]:
    """A draw from N(mean, std²)."""
    return torch.addcmul(mean, std, standard_normal(mean.shape, mean, generator))


LocalNoiseFunction = Callable[[DropoutLinear, Tensor, LayerRates, Tensor], Tensor]
BasisFunction = Callable[[DropoutLinear, Tensor, Tensor, Tensor, RateBounds], Tensor]


class LocalNoise:
    """B ~ N(A (1−P)θ, A² P(1−P)θ²), drawn for every point on its own.

    Args:
        generator: source of the noise; PyTorch's own if None.
        compute: the computation, from an `Engine` of :mod:`nvdp.nn.fused` or by plain autograd.
    """

    def __init__(self, generator: torch.Generator | None = None, compute: LocalNoiseFunction = local_noise) -> None:
        self.generator, self.compute = generator, compute

    def __call__(
        self, layer: DropoutLinear, inputs: Float[Tensor, "task point k"], rates: LayerRates
    ) -> Float[Tensor, "task point d"]:
        """Noisy pre-activations."""
        shape = (*inputs.shape[:-1], layer.shape[1])
        return self.compute(layer, inputs, rates, tabled_normal(shape, inputs, self.generator))


class DropoutNetwork(nn.Module):
    """The task network (the paper's agent): conditional-dropout layers with an activation between them.

    Args:
        sizes: widths from the inputs to the outputs.
        activation: between layers.
        scale: scaling of x.
    """

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
        """Inputs of the first layer: scaled x, then `seen`, the features of the task or of each point, if any."""
        h = self.scale(x)
        if seen is None:
            return h
        by_point = seen[:, None].expand(-1, x.shape[1], -1) if seen.dim() == 2 else seen
        return torch.cat([h, by_point], dim=-1)

    def hidden(
        self,
        x: Float[Tensor, "task point x"],
        rates: Sequence[LayerRates],
        layer_forward: LayerForward,
        seen: Float[Tensor, "task *point r"] | None = None,
    ) -> Float[Tensor, "*sample task point k"]:
        """Inputs of the last layer."""
        h = self.inputs(x, seen)
        for layer, layer_rates in zip(list(self.dropout_layers())[:-1], rates[:-1], strict=True):
            h = activated(self.activation, layer_forward(layer, h, layer_rates))
        return h

    def forward(
        self,
        x: Float[Tensor, "task point x"],
        rates: Sequence[LayerRates],
        layer_forward: LayerForward,
        seen: Float[Tensor, "task *point r"] | None = None,
    ) -> Float[Tensor, "*sample task point outputs"]:
        """Outputs at x.

        Args:
            x: points of each task.
            rates: dropout rates of every layer.
            layer_forward: how a layer's pre-activations are computed.
            seen: features of the task (task, r) or of each point (task, point, r) that are given beside x.

        Returns:
            Outputs of the last layer, with a sample axis first if `layer_forward` adds one.
        """
        last = list(self.dropout_layers())[-1]
        return layer_forward(last, self.hidden(x, rates, layer_forward, seen), rates[-1])
