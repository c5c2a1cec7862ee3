"""Cross-attention from targets to a context, with distances: a head's score is q·k − ‖λ(x − x')‖², λ learned per head.

The distance term is the log of an RBF kernel: near points matter from the start of training, where plain dot products
have to learn it. A learned null token lets a target far from all context points attend to nothing; it also covers
empty contexts. The distance is part of the product of queries and keys: 2λx·λx' − ‖λx'‖² − ‖λx‖² is a dot product of
vectors made from x and from x'.

Scores are taken relative to the null token's, q·(k − k₀), so that its weight is exp(0) = 1 and it needs no column of
its own. With E = exp(scores), values V that have a row of ones below them, and V₀ = (v₀, 1) of the null token::

    O = V Eᵀ + V₀        output = O[:-1] / O[-1]

which is softmax attention without the passes of a softmax. Its gradients, with G' = (∂output / O[-1], −Σ ∂output ∘
output / O[-1]) and all products by element but those of matrices::

    ∂V = G' E        ∂scores = (G'ᵀ V) E        ∂queries = keys ∂scoresᵀ        ∂keys = queries ∂scores

Queries, keys and values have their features before their points: a product with few columns takes several times as
long as the same one with few rows. `attend` computes this; `plain_attention` is the reference that its tests use.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nvdp.errors import InputError
from nvdp.nn.mlp import AS_GIVEN, InputScale
from nvdp.tasks import PointSet

SCALES = (1.0, 10.0)  # initial λ of the first and of the last head, for inputs of unit size
OFFSET_START = 2.0  # initial advantage of a point's score over the null token's
HIDDEN = -3e4  # added to the score of a masked point; float16 can hold it
LEAST, MOST = -40.0, 60.0  # exp is several times slower on numbers that underflow; exp(−40) beside 1 is nothing
MOST_KEPT = 4_096  # numbers of targets whose features are kept


class DistanceAttention(nn.Module):
    """Multi-head attention from points to context points; ``by_distance=False`` is plain dot-product attention.

    ``compute`` is `attend`, or `plain_attention` to compare with.
    """

    def __init__(self, width: int, heads: int, x_dim: int, by_distance: bool = True) -> None:
        super().__init__()
        if width % heads:
            raise InputError(f"attention of width {width} cannot have {heads} heads; expected a divisor of the width")
        self.heads, self.by_distance, self.compute = heads, by_distance, attend
        self.query, self.key_value, self.out = (nn.Linear(width, d) for d in (width, 2 * width, width))
        scales = torch.linspace(math.log(SCALES[0]), math.log(SCALES[1]), heads)
        self.log_scale = nn.Parameter(scales[:, None].repeat(1, x_dim)) if by_distance else None
        self.offset = nn.Parameter(torch.full((heads, 1, 1), OFFSET_START))
        self.null_token = nn.Parameter(torch.zeros(2, heads, 1, width // heads))  # key and value

    def keys_and_values(
        self,
        tokens: Float[Tensor, "task point width"],
        x: Float[Tensor, "task point x"],
        mask: Bool[Tensor, "task point"],
    ) -> tuple[Float[Tensor, "task head size point"], Float[Tensor, "task head value point"]]:
        """Keys and values of the points that `mask` marks as real."""
        keys, values = self.key_value(tokens).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 4, 1)
        hidden = torch.zeros_like(x[..., 0]).masked_fill_(~mask, HIDDEN)[:, None, None]  # (task, 1, 1, point)
        score = self.offset + hidden
        if self.log_scale is None:
            parts = [score]
        else:
            at = self._scaled(x)
            parts = [at, score - at.square().sum(2, keepdim=True), -torch.ones_like(score)]
        keys = torch.cat([keys - self.null_token[0].mT, *parts], dim=2)
        return keys, torch.cat([values, torch.ones_like(score)], dim=2)

    def forward(
        self,
        tokens: Float[Tensor, "task point width"],
        x: Float[Tensor, "task point x"],
        keys: Float[Tensor, "task head size key"],
        values: Float[Tensor, "task head value key"],
    ) -> Float[Tensor, "task point width"]:
        """Attention output of every point."""
        shrink = 1 / math.sqrt(values.shape[2] - 1)
        queries = F.linear(tokens, self.query.weight * shrink, self.query.bias * shrink)
        queries = queries.unflatten(-1, (self.heads, -1)).permute(0, 2, 3, 1)  # (task, head, size, point)
        one = torch.ones_like(queries[:, :, :1])
        if self.log_scale is None:
            parts = [one]
        else:
            at = self._scaled(x)
            parts = [2 * at, one, at.square().sum(2, keepdim=True)]
        attended = self.compute(torch.cat([queries, *parts], dim=2), keys, values, self.null_token[1].mT)
        return self.out(attended.flatten(1, 2).mT)

    def _scaled(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task head x point"]:
        assert self.log_scale is not None
        return x.mT[:, None] * self.log_scale.exp()[:, :, None]


def plain_attention(
    queries: Float[Tensor, "task head size point"],
    keys: Float[Tensor, "task head size key"],
    values: Float[Tensor, "task head value key"],
    null: Float[Tensor, "head feature 1"],
) -> Float[Tensor, "task head feature point"]:
    """Softmax attention over the keys and a null token of score 0, by plain autograd: the reference for `attend`."""
    weights = torch.softmax(F.pad(queries.mT @ keys, (1, 0)), dim=-1)
    whole = torch.cat([null.expand(len(values), -1, -1, -1), values[:, :, :-1]], dim=-1)
    return whole @ weights.mT


def attend(
    queries: Float[Tensor, "task head size point"],
    keys: Float[Tensor, "task head size key"],
    values: Float[Tensor, "task head value key"],
    null: Float[Tensor, "head feature 1"],
) -> Float[Tensor, "task head feature point"]:
    """Softmax attention over the keys and a null token of score 0, with hand-derived gradients.

    Args:
        queries: One column a target.
        keys: One column a context point; the scores are queriesᵀ · keys.
        values: One column a context point, the last row ones.
        null: The null token's value.

    Returns:
        One column a target, differentiable once.

    >>> one, nothing = torch.ones(1, 1, 2, 3), torch.zeros(1, 2, 1)
    >>> attend(one, torch.zeros(1, 1, 2, 1), torch.ones(1, 1, 3, 1), nothing)[0, 0, 0]
    tensor([0.5000, 0.5000, 0.5000])
    """
    device, precision = queries.device.type, null.dtype
    with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
        parts = (part.to(precision).flatten(0, 1) for part in (queries, keys, values))
        columns = null.expand(len(queries), -1, -1, -1).flatten(0, 1)
        return _Attend.apply(*parts, columns).unflatten(0, queries.shape[:2])


class _Attend(torch.autograd.Function):
    """The output and its gradients, by the formulas at the top of this file."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, null: Tensor) -> Tensor:
        weights = torch.bmm(queries.mT, keys)  # (task and head, point, key)
        largest = None
        if weights.device.type != "cpu" or (weights.numel() and weights.max() > MOST):
            largest = F.pad(weights, (1, 0)).amax(-1, keepdim=True)  # at least 0, the null token's score
            weights.sub_(largest)
        weights.clamp_(min=LEAST).exp_()
        null_weight = torch.ones_like(queries[:, :1]) if largest is None else torch.exp(-largest).mT
        sums = torch.bmm(values, weights.mT)  # (task and head, value, point)
        sums[:, :-1].add_(null * null_weight)
        total = sums[:, -1:].add_(null_weight)
        output = sums[:, :-1] / total
        ctx.save_for_backward(queries, keys, values, weights, null_weight / total, total, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, weights, null_share, total, output = ctx.saved_tensors
        by_sums = torch.empty_like(values[:, :, :1]).expand(-1, -1, gradient.shape[-1]).contiguous()
        own = torch.div(gradient, total, out=by_sums[:, :-1])
        torch.sum(own * output, 1, keepdim=True, out=by_sums[:, -1:]).neg_()
        null_gradient = (gradient * null_share).sum(-1, keepdim=True)
        values_gradient = torch.bmm(by_sums, weights)
        by_scores = torch.bmm(by_sums.mT, values).mul_(weights)
        queries_gradient = torch.bmm(keys, by_scores.mT)
        return queries_gradient, torch.bmm(queries, by_scores), values_gradient, null_gradient


class AttentionBlock(nn.Module):
    """A pre-norm transformer block: attention to the context, then a feed-forward network."""

    def __init__(self, width: int, heads: int, x_dim: int, by_distance: bool = True) -> None:
        super().__init__()
        self.attention = DistanceAttention(width, heads, x_dim, by_distance)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.expand, self.contract = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def keys_and_values(
        self,
        context: Float[Tensor, "task point width"],
        x: Float[Tensor, "task point x"],
        mask: Bool[Tensor, "task point"],
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of a context."""
        return self.attention.keys_and_values(self.norms[0](context), x, mask)

    def forward(
        self,
        tokens: Float[Tensor, "task point width"],
        x: Float[Tensor, "task point x"],
        keys_and_values: tuple[Tensor, Tensor],
    ) -> Float[Tensor, "task point width"]:
        """The points' tokens after the block."""
        tokens = tokens + self.attention(self.norms[0](tokens), x, *keys_and_values)
        return tokens + self.contract(F.silu(self.expand(self.norms[1](tokens))))


@dataclass(frozen=True)
class AttendedContext:
    """Keys and values of a context in every block. Called with x, it gives the features of targets there."""

    attention: "ContextAttention"
    keys_and_values: Sequence[tuple[Tensor, Tensor]]
    _last: list[tuple[Tensor, Tensor]] = field(default_factory=list, repr=False, compare=False)

    def __call__(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task point feature"]:
        """Features of targets. Those of the last targets are kept: a mean and functions are often asked at the same."""
        if torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type) or x.numel() > MOST_KEPT:
            return self.attention.features(x, self.keys_and_values)
        for at, features in self._last:
            if at.shape == x.shape and torch.equal(at, x):
                return features
        features = self.attention.features(x, self.keys_and_values)
        self._last[:] = [(x.clone(), features)]
        return features


class ContextAttention(nn.Module):
    """Attention blocks that contexts and targets share; a target is a point whose y is unknown.

    Args:
        x_dim: inputs of a point.
        y_dim: outputs of a point.
        width: of the tokens.
        blocks: number of attention blocks.
        heads: of each block.
        by_distance: whether scores have the distance term.
        x_scale: scaling of x.
        y_scale: scaling of y.
    """

    def __init__(
        self,
        x_dim: int,
        y_dim: int,
        *,
        width: int,
        blocks: int,
        heads: int,
        by_distance: bool = True,
        x_scale: InputScale = AS_GIVEN,
        y_scale: InputScale = AS_GIVEN,
    ) -> None:
        super().__init__()
        self.x_scale, self.y_scale, self.y_dim, self.size = x_scale, y_scale, y_dim, width
        self.embed = nn.Sequential(nn.Linear(x_dim + y_dim + 1, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(AttentionBlock(width, heads, x_dim, by_distance) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)

    def read(self, context: PointSet) -> AttendedContext:
        """Encode a context once, for any number of targets."""
        x = self.x_scale(context.x)
        known = torch.cat([self.y_scale(context.y), torch.ones_like(x[..., :1])], dim=-1)
        tokens = self.embed(torch.cat([x, known], dim=-1))
        by_block = []
        for block in self._blocks():
            by_block.append(block.keys_and_values(tokens, x, context.mask))
            if len(by_block) < len(self.blocks):  # the last block's context tokens are not used
                tokens = block(tokens, x, by_block[-1])
        return AttendedContext(self, by_block)

    def features(
        self, x: Float[Tensor, "task point x"], keys_and_values: Sequence[tuple[Tensor, Tensor]]
    ) -> Float[Tensor, "task point feature"]:
        """Features of targets at x."""
        x = self.x_scale(x)
        tokens = self.embed(F.pad(x, (0, self.y_dim + 1)))
        for block, own in zip(self._blocks(), keys_and_values, strict=True):
            tokens = block(tokens, x, own)
        return self.norm(tokens)

    def _blocks(self) -> Iterable[AttentionBlock]:
        return cast(Iterable[AttentionBlock], self.blocks)
