"""Cross-attention from targets to a context, with distances: a head's score is q·k − ‖λ(x − x')‖², λ learned per head.

The distance term is the log of an RBF kernel: near points matter from the start of training, where plain dot products
have to learn it. A learned null token lets a target far from all context points attend to nothing; it also covers
empty contexts. Both are part of one product of queries and keys: 2λx·λx' − ‖λx'‖² − ‖λx‖² is a dot product of
vectors made from x and from x', and 0 for the null token.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.errors import InputError
from nvdp.nn.mlp import AS_GIVEN, InputScale
from nvdp.tasks import PointSet

SCALES = (1.0, 10.0)  # initial λ of the first and of the last head, for inputs of unit size
OFFSET_START = 2.0  # initial advantage of a point's score over the null token's


class DistanceAttention(nn.Module):
    """Multi-head attention from points to context points; ``by_distance=False`` is plain dot-product attention."""

    def __init__(self, width: int, heads: int, x_dim: int, by_distance: bool = True) -> None:
        super().__init__()
        if width % heads:
            raise InputError(f"attention of width {width} cannot have {heads} heads; expected a divisor of the width")
        self.heads, self.by_distance = heads, by_distance
        self.query, self.key_value, self.out = (nn.Linear(width, d) for d in (width, 2 * width, width))
        scales = torch.linspace(math.log(SCALES[0]), math.log(SCALES[1]), heads)
        self.log_scale = nn.Parameter(scales[:, None].repeat(1, x_dim)) if by_distance else None
        self.offset = nn.Parameter(torch.full((heads, 1, 1), OFFSET_START))
        self.null_token = nn.Parameter(torch.zeros(2, heads, 1, width // heads))  # key and value

    def keys_and_values(
        self, tokens: Float[Tensor, "task point width"], x: Float[Tensor, "task point x"]
    ) -> tuple[Float[Tensor, "task head key size"], Float[Tensor, "task head key value"]]:
        """Keys and values of a context, the null token's first."""
        tasks = len(tokens)
        keys, values = self.key_value(tokens).unflatten(-1, (2, self.heads, -1)).movedim((2, 3), (0, 2))
        score = self.offset.expand(tasks, -1, x.shape[1], 1)
        if self.log_scale is None:
            parts, extra = [score], 1
        else:
            at = self._scaled(x)
            parts, extra = [at, score - at.square().sum(-1, keepdim=True), -torch.ones_like(score)], x.shape[-1] + 2
        null_key = F.pad(self.null_token[0], (0, extra)).expand(tasks, -1, -1, -1)
        keys = torch.cat([null_key, torch.cat([keys, *parts], dim=-1)], dim=2)
        return keys, torch.cat([self.null_token[1].expand(tasks, -1, -1, -1), values], dim=2)

    def forward(
        self,
        tokens: Float[Tensor, "task point width"],
        x: Float[Tensor, "task point x"],
        keys: Float[Tensor, "task head key size"],
        values: Float[Tensor, "task head key value"],
        shown: Bool[Tensor, "task 1 1 key"],
    ) -> Float[Tensor, "task point width"]:
        """Attention output of every point over the keys that `shown` marks."""
        queries = self.query(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2) / math.sqrt(values.shape[-1])
        one = torch.ones_like(queries[..., :1])
        if self.log_scale is None:
            parts = [one]
        else:
            at = self._scaled(x)
            parts = [2 * at, one, at.square().sum(-1, keepdim=True)]
        queries = torch.cat([queries, *parts], dim=-1)
        attended = _attend(queries, keys, values, shown)
        return self.out(attended.transpose(1, 2).flatten(-2))

    def _scaled(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task head point x"]:
        assert self.log_scale is not None
        return x[:, None] * self.log_scale.exp()[:, None]


def _attend(queries: Tensor, keys: Tensor, values: Tensor, shown: Bool[Tensor, "task 1 1 key"]) -> Tensor:
    if queries.device.type != "cpu":
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=shown, scale=1.0)
    # PyTorch's own spends a fifth of its time on rows without a key; the null token is in every row.
    hidden = torch.zeros(shown.shape, dtype=queries.dtype).masked_fill_(~shown, -math.inf)
    return torch.softmax(queries @ keys.mT + hidden, dim=-1) @ values


class AttentionBlock(nn.Module):
    """A pre-norm transformer block: attention to the context, then a feed-forward network."""

    def __init__(self, width: int, heads: int, x_dim: int, by_distance: bool = True) -> None:
        super().__init__()
        self.attention = DistanceAttention(width, heads, x_dim, by_distance)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.expand, self.contract = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def keys_and_values(
        self, context: Float[Tensor, "task point width"], x: Float[Tensor, "task point x"]
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of a context."""
        return self.attention.keys_and_values(self.norms[0](context), x)

    def forward(
        self,
        tokens: Float[Tensor, "task point width"],
        x: Float[Tensor, "task point x"],
        keys_and_values: tuple[Tensor, Tensor],
        shown: Bool[Tensor, "task 1 1 key"],
    ) -> Float[Tensor, "task point width"]:
        """The points' tokens after the block."""
        tokens = tokens + self.attention(self.norms[0](tokens), x, *keys_and_values, shown)
        return tokens + self.contract(F.silu(self.expand(self.norms[1](tokens))))


@dataclass(frozen=True)
class AttendedContext:
    """Keys and values of a context in every block. Called with x, it gives the features of targets there."""

    attention: "ContextAttention"
    keys_and_values: Sequence[tuple[Tensor, Tensor]]
    shown: Bool[Tensor, "task 1 1 key"]

    def __call__(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task point feature"]:
        """Features of targets."""
        return self.attention.features(x, self.keys_and_values, self.shown)


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
        shown = F.pad(context.mask, (1, 0), value=True)[:, None, None]  # the null token is never masked
        by_block = []
        for block in self._blocks():
            by_block.append(block.keys_and_values(tokens, x))
            if len(by_block) < len(self.blocks):  # the last block's context tokens are not used
                tokens = block(tokens, x, by_block[-1], shown)
        return AttendedContext(self, by_block, shown)

    def features(
        self,
        x: Float[Tensor, "task point x"],
        keys_and_values: Sequence[tuple[Tensor, Tensor]],
        shown: Bool[Tensor, "task 1 1 key"],
    ) -> Float[Tensor, "task point feature"]:
        """Features of targets at x."""
        x = self.x_scale(x)
        tokens = self.embed(F.pad(x, (0, self.y_dim + 1)))
        for block, own in zip(self._blocks(), keys_and_values, strict=True):
            tokens = block(tokens, x, own, shown)
        return self.norm(tokens)

    def _blocks(self) -> Iterable[AttentionBlock]:
        return cast(Iterable[AttentionBlock], self.blocks)
