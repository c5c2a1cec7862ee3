"""Dropout rates of every weight from a set representation: the low-rank product of Bernoulli experts, eq. 3.

The autograd version of the KL between two posteriors, eq. 4, is here too; :mod:`nvdp.nn.fused` computes it faster.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.errors import InputError
from nvdp.nn.mlp import StackedMLP, he_uniform_
from nvdp.nn.task_norm import TaskNorm

TEMPERATURE_START, TEMPERATURE_RANGE = 1.5, (0.5, 5.0)
OFFSET_LIMIT = 1.5
START_RATE = 0.125  # of three experts at a half each


@dataclass(frozen=True)
class RateBounds:
    """How rates are kept inside [floor, 1 − floor].

    ``affine`` maps the product of experts p to floor + (1 − 2 floor) p. It stays low-rank and its gradient never
    vanishes. ``clip`` clips p to the bounds, as the paper does.

    Args:
        kind: "affine" or "clip".
        floor: smallest rate, between 0 and 0.5.
    """

    kind: str = "affine"
    floor: float = 0.01

    def __post_init__(self) -> None:
        if self.kind not in ("affine", "clip"):
            raise InputError(f"unknown rate bounds '{self.kind}'; expected affine or clip")
        if not 0 < self.floor < 0.5:
            raise InputError(f"the rate floor is {self.floor}; expected a number between 0 and 0.5")

    def __call__(self, product: Tensor) -> Tensor:
        """Bounded rates."""
        if self.kind == "clip":
            return product.clamp(self.floor, 1 - self.floor)
        return product * (1 - 2 * self.floor) + self.floor


@dataclass(frozen=True)
class LayerRates:
    """The experts of one layer and the dropout rates P they give; a bias has no row expert of its own."""

    rows: Float[Tensor, "task k"]  # s(a)
    columns: Float[Tensor, "task d"]  # s(b)
    layer: Float[Tensor, "task 1"]  # s(c)
    bounds: RateBounds

    @property
    def shape(self) -> tuple[int, int]:
        """(K, D)."""
        return self.rows.shape[-1], self.columns.shape[-1]

    @property
    def low_rank(self) -> bool:
        """Whether P is an affine map of an outer product, which :mod:`nvdp.nn.fused` needs."""
        return self.bounds.kind == "affine"

    def weight(self) -> Float[Tensor, "task k d"]:
        """P of the weight matrix: s(a) s(b)ᵀ s(c), bounded."""
        scaled_rows = self.rows * self.layer
        return self.bounds(scaled_rows[:, :, None] * self.columns[:, None, :])

    def to(self, dtype: torch.dtype) -> Self:
        """The same rates in another precision."""
        return replace(self, rows=self.rows.to(dtype), columns=self.columns.to(dtype), layer=self.layer.to(dtype))

    def keep(self) -> tuple[Float[Tensor, "task k d"], Float[Tensor, "task d"]]:
        """1 − P of the weight matrix and of the bias, in few calls."""
        if not self.low_rank:
            return 1 - self.weight(), 1 - self.bias()
        minus_layer = self.layer * (2 * self.bounds.floor - 1)
        weight = torch.mul((self.rows * minus_layer)[:, :, None], self.columns[:, None, :])
        return weight.add_(1 - self.bounds.floor), (self.columns * minus_layer).add_(1 - self.bounds.floor)

    def mean(self) -> Float[Tensor, " task"]:
        """The mean of P over the weight matrix; affine bounds do not need the matrix for it."""
        if self.bounds.kind == "clip":
            return self.weight().mean((-2, -1))
        return self.bounds(self.rows.mean(-1) * self.columns.mean(-1) * self.layer[:, 0])

    def bias(self) -> Float[Tensor, "task d"]:
        """P of the bias: s(b) s(c), bounded."""
        return self.bounds(self.columns * self.layer)


@dataclass(frozen=True)
class FullRates(LayerRates):
    """A rate of its own for each weight, for ablations: `rows` holds K × D rates, `columns` one for each bias."""

    @property
    def low_rank(self) -> bool:
        """False: P is not a product."""
        return False

    def weight(self) -> Float[Tensor, "task k d"]:
        """P of the weight matrix, bounded."""
        return self.bounds(self.rows.unflatten(1, (-1, self.columns.shape[1])))

    def mean(self) -> Float[Tensor, " task"]:
        """The mean of P over the weight matrix."""
        return self.weight().mean((-2, -1))

    def bias(self) -> Float[Tensor, "task d"]:
        """P of the bias, bounded."""
        return self.bounds(self.columns)


class NetworkRates(tuple[LayerRates, ...]):
    """The rates of all layers, and the one array that holds all their experts."""

    experts: Float[Tensor, "task expert"]


def experts_of(rates: Sequence[LayerRates]) -> Float[Tensor, "task expert"]:
    """Row, column and layer experts of every layer in turn."""
    if isinstance(rates, NetworkRates):
        return rates.experts
    return torch.cat([part for layer in rates for part in (layer.rows, layer.columns, layer.layer)], dim=-1)


def dropout_kl(p: Tensor, p_hat: Tensor) -> Tensor:
    """KL(N((1−P)θ, P(1−P)θ²) ‖ N((1−P̂)θ, P̂(1−P̂)θ²)), eq. 4, element by element; θ cancels.

    With v = P(1−P), d = P − P̂ and δ = (v − v̂)/v̂ = d (1 − P − P̂)/v̂ the divergence is
    ½ [δ − log(1 + δ) + d²/v̂]. This is exactly 0 at P = P̂ and loses no digits near it.

    >>> dropout_kl(torch.tensor(0.3), torch.tensor(0.3)).item()
    0.0
    """
    d, v_hat = p - p_hat, p_hat * (1 - p_hat)
    delta = d * (1 - p - p_hat) / v_hat
    return 0.5 * (delta - torch.log1p(delta) + d.square() / v_hat)


def network_kl(q: Sequence[LayerRates], p: Sequence[LayerRates]) -> Float[Tensor, " task"]:
    """KL of all layers' weights and biases, summed: eq. 4."""
    layers = []
    for own, other in zip(q, p, strict=True):
        weights = dropout_kl(own.weight(), other.weight()).sum((-2, -1))
        layers.append(weights + dropout_kl(own.bias(), other.bias()).sum(-1))
    return torch.stack(layers).sum(0)


class RateNetwork(nn.Module):
    """One meta-network g per layer of the task network, r ↦ (a, b, c), and a learned temperature τ for each.

    The hidden layers of all g have the same shape and run as one batched product. Only the last linear maps, whose
    width K + D + 1 differs, are separate.

    Args:
        representation: width of r.
        layer_shapes: (K, D) of every layer of the task network.
        width: of the hidden layers of g.
        layers: hidden layers of g.
        activation: of g.
        residual: whether g has normalised residual blocks.
        bounds: of the rates.
        normalise: every logit is normalised over tasks, then scaled by a learned gain and shifted by an offset
            within ±`OFFSET_LIMIT`, which keeps the rates dependent on the task.
        full: no product of experts; the last map gives a logit for each weight.
    """

    def __init__(
        self,
        representation: int,
        layer_shapes: Sequence[tuple[int, int]],
        *,
        width: int,
        layers: int,
        activation: str,
        residual: bool = False,
        bounds: RateBounds | None = None,
        normalise: bool = False,
        full: bool = False,
    ) -> None:
        super().__init__()
        self.kind = FullRates if full else LayerRates
        # Numbers of logits of each layer: for rows (or single weights), columns (or biases), and the layer.
        self.parts = [(k * d if full else k, d, 1) for k, d in layer_shapes]
        widths = [sum(parts) for parts in self.parts]
        self.norms = nn.ModuleList(TaskNorm(width) for width in widths) if normalise else None
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(width)) for width in widths) if normalise else None
        self.bounds = bounds or RateBounds()
        self.hidden = StackedMLP(len(widths), representation, width, layers, activation, residual=residual)
        heads = [nn.Linear(width, outputs) for outputs in widths]
        for head in heads:
            he_uniform_(head.weight, width)
            if full:  # starts at the rate of a product of three experts
                nn.init.constant_(head.bias, TEMPERATURE_START * math.log(START_RATE / (1 - START_RATE)))
        self.heads = nn.ModuleList(heads)
        self.temperature = nn.Parameter(torch.full((len(widths),), TEMPERATURE_START))

    def forward(self, representation: Float[Tensor, "task r"]) -> NetworkRates:
        """The rates of every layer for each task."""
        return self.of_sets(representation)[0]

    def of_sets(self, *representations: Float[Tensor, "task r"]) -> tuple[NetworkRates, ...]:
        """The rates of every layer for several sets of each task, computed as one batch."""
        hidden, sets = self.hidden(torch.cat(representations)), len(representations)  # (layer, set and task, width)
        return self.of_logits([self._logits(index, h, sets) for index, h in enumerate(hidden)], sets)

    def of_logits(self, logits: Sequence[Float[Tensor, "row _"]], sets: int = 1) -> tuple[NetworkRates, ...]:
        """Experts s(·/τ) from every layer's (a, b, c), for rows that hold `sets` sets one after the other."""
        taus = self.temperature.clamp(*TEMPERATURE_RANGE).unbind()
        scaled = torch.cat([layer / tau for layer, tau in zip(logits, taus, strict=True)], dim=-1)
        # In the weights' precision even under autocast: near the bounds the variance P(1−P) needs the digits of P.
        experts = torch.sigmoid(scaled.to(self.temperature.dtype))
        return tuple(self._by_layer(own) for own in experts.chunk(sets))

    def _by_layer(self, experts: Float[Tensor, "task expert"]) -> NetworkRates:
        parts = experts.split(list(chain(*self.parts)), dim=-1)
        layers = zip(parts[0::3], parts[1::3], parts[2::3], strict=True)
        rates = NetworkRates(self.kind(*layer, self.bounds) for layer in layers)
        rates.experts = experts
        return rates

    def _logits(self, index: int, h: Float[Tensor, "task width"], sets: int) -> Float[Tensor, "task logit"]:
        head = cast(nn.Linear, self.heads[index])
        if self.norms is None or self.gains is None:
            return head(h)
        normal = torch.cat(self.norms[index](*F.linear(h, head.weight).chunk(sets)))
        return normal * self.gains[index] + OFFSET_LIMIT * torch.tanh(head.bias / OFFSET_LIMIT)
