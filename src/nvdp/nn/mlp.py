"""Multilayer perceptrons, activations, initialisation, and the scaling of inputs with optional Fourier features."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.errors import InputError


@dataclass(frozen=True)
class InputScale:
    """Affine input scaling v ↦ (v − centre) · scale, plus Fourier features sin, cos(k π/4 v), k = 1 … `fourier`.

    Pixel coordinates in [0, 1]² are scaled to [−2, 2]², the range of the 1D tasks, so that the usual initialisation
    suits them. Fourier features help a ReLU network with functions that change quickly.

    >>> InputScale(0.5, 4.0)(torch.tensor([0.0, 1.0]))
    tensor([-2.,  2.])
    >>> InputScale(fourier=2)(torch.tensor([[0.0]]))
    tensor([[0., 0., 0., 1., 1.]])
    """

    centre: float = 0.0
    scale: float = 1.0
    fourier: int = 0

    def width(self, values: int) -> int:
        """Output width for `values` inputs."""
        return values * (1 + 2 * self.fourier)

    def __call__(self, values: Float[Tensor, "*batch value"]) -> Float[Tensor, "*batch seen"]:
        """Scaled values, then their Fourier features, along the last dimension."""
        if self.centre != 0 or self.scale != 1:
            values = (values - self.centre) * self.scale
        if not self.fourier:
            return values
        frequencies = values.new_tensor([math.pi / 4 * k for k in range(1, self.fourier + 1)])
        angles = (values[..., None] * frequencies).flatten(-2)
        return torch.cat([values, angles.sin(), angles.cos()], dim=-1)


AS_GIVEN = InputScale()
Activation = Callable[..., Tensor]
ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
}
IN_PLACE = {F.relu, F.leaky_relu, F.silu, F.mish}  # those that take `inplace`


def activation_named(name: str) -> Activation:
    """The activation function of that name.

    >>> activation_named("relu")(torch.tensor(-1.0)).item()
    0.0
    """
    if name not in ACTIVATIONS:
        raise InputError(f"unknown activation '{name}'; there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def activated(activation: Activation, fresh: Tensor) -> Tensor:
    """The activation of a temporary array: in place where there are no gradients.

    With gradients in-place is slower: a linear layer's result is a view, and autograd has to track its changes.
    """
    if activation in IN_PLACE and not torch.is_grad_enabled():
        return activation(fresh, inplace=True)
    return activation(fresh)


def fan_in_uniform(*shape: int, fan_in: int) -> nn.Parameter:
    """A parameter drawn from U(−1/√fan_in, 1/√fan_in), PyTorch's own initialisation of a linear layer."""
    bound = 1 / math.sqrt(fan_in)
    return nn.Parameter(torch.empty(*shape).uniform_(-bound, bound))


def he_uniform_(weight: Tensor, fan_in: int) -> None:
    """He initialisation, U(−√(6/fan_in), √(6/fan_in)) (He et al. 2015): keeps a signal's size through ReLU layers.

    PyTorch's default shrinks the signal by 0.4 a layer. Encoder and rate network are together ten layers deep, so
    the context would hardly change the rates.
    """
    bound = math.sqrt(6 / fan_in)
    nn.init.uniform_(weight, -bound, bound)


class MLP(nn.Module):
    """`layers` linear layers of `width`, each followed by the activation; the last gives `outputs` if they differ.

    With ``residual`` the layers after the first become blocks h + W act(norm(h)), with layer norm.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        layers: int,
        activation: str,
        *,
        residual: bool = False,
        outputs: int | None = None,
    ) -> None:
        super().__init__()
        self.activation = activation_named(activation)
        outputs = outputs or width
        if residual and outputs != width:
            raise InputError(f"a residual network of width {width} cannot give {outputs} features; expected {width}")
        linears = [nn.Linear(k, d) for k, d in pairwise([inputs] + [width] * (layers - 1) + [outputs])]
        self.linears = nn.ModuleList(linears)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers)) if residual else None
        if not residual:
            for linear in linears:
                he_uniform_(linear.weight, linear.in_features)

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch width"]:
        """Features of x."""
        if self.norms is None:
            for linear in self.linears:
                x = activated(self.activation, linear(x))
            return x
        h = self.linears[0](x)
        for norm, linear in zip(self.norms[:-1], self.linears[1:], strict=True):
            h = h + linear(activated(self.activation, norm(h)))
        return activated(self.activation, self.norms[-1](h))


class StackedMLP(nn.Module):
    """`copies` separate networks of the same shape, evaluated together as batched products."""

    def __init__(
        self, copies: int, inputs: int, width: int, layers: int, activation: str, *, residual: bool = False
    ) -> None:
        super().__init__()
        self.activation = activation_named(activation)
        sizes = list(pairwise([inputs] + [width] * layers))
        self.weights = nn.ParameterList(fan_in_uniform(copies, k, d, fan_in=k) for k, d in sizes)
        self.biases = nn.ParameterList(fan_in_uniform(copies, 1, d, fan_in=k) for k, d in sizes)
        self.residual = residual
        if not residual:
            for weight in self.weights:
                he_uniform_(weight, weight.shape[1])
        else:
            self.scales = nn.ParameterList(nn.Parameter(torch.ones(copies, 1, width)) for _ in sizes)
            self.shifts = nn.ParameterList(nn.Parameter(torch.zeros(copies, 1, width)) for _ in sizes)

    def forward(self, x: Float[Tensor, "task inputs"]) -> Float[Tensor, "copy task width"]:
        """Features of x under each of the networks."""
        h = x.expand(len(self.weights[0]), *x.shape)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if not self.residual:
                h = activated(self.activation, torch.baddbmm(bias, h, weight))
            elif layer == 0:
                h = torch.baddbmm(bias, h, weight)
            else:
                h = h + torch.baddbmm(bias, self._activate(h, layer - 1), weight)
        return self._activate(h, -1) if self.residual else h

    def _activate(self, h: Tensor, index: int) -> Tensor:
        normal = F.layer_norm(h, h.shape[-1:])
        return activated(self.activation, torch.addcmul(self.shifts[index], normal, self.scales[index]))


class ConditionedMLP(nn.Module):
    """A network of (x, condition), where the condition c is one vector per task.

    The first layer is W [x, c] = W_x x + W_c c, so that W_c c is computed once per task. `features` is the number of
    features of each point that are given beside x.
    """

    def __init__(
        self,
        inputs: int,
        condition: int,
        *,
        width: int,
        layers: int,
        outputs: int,
        activation: str,
        scale: InputScale = AS_GIVEN,
        features: int = 0,
    ) -> None:
        super().__init__()
        self.scale, self.width = scale, width
        inputs = scale.width(inputs) + features
        self.activation = activation_named(activation)
        self.first_x = nn.Parameter(torch.empty(inputs, width))
        self.first_condition = nn.Linear(condition, width)
        for weight in (self.first_x, self.first_condition.weight):
            he_uniform_(weight, inputs + condition)
        hidden = [nn.Linear(width, width) for _ in range(layers - 1)]
        for linear in hidden:
            he_uniform_(linear.weight, width)
        self.hidden = nn.ModuleList(hidden)
        self.last = nn.Linear(width, outputs)

    def forward(
        self,
        x: Float[Tensor, "task point x"],
        condition: Float[Tensor, "*sample task condition"],
        features: Float[Tensor, "task point feature"] | None = None,
    ) -> Float[Tensor, "*sample task point outputs"]:
        """Outputs at x under every condition."""
        shared = self.first_condition(condition).unsqueeze(-2)  # (*sample, task, 1, width)
        inputs = self.scale(x) if features is None else torch.cat([self.scale(x), features], dim=-1)
        h = activated(self.activation, inputs @ self.first_x + shared)
        for linear in self.hidden:
            h = activated(self.activation, linear(h))
        return self.last(h)

    def at(self, x: Float[Tensor, "task point x"]) -> Callable[[Tensor], Tensor]:
        """The same as a function of the condition."""
        return partial(self, x)
