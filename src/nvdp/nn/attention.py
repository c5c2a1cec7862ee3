"""Attention that knows distances: a head's score is its content's plus −‖λ(x − x')‖², an RBF kernel with a learned λ.

Plain dot products must first learn that near points matter; here they do from the start, and content says how much.
A score of "nobody" beside the points' own keeps what a softmax forgets: how near the nearest of them is. It also makes
an empty set the same case as any other. Both are part of one product of queries and keys:
2λx·λx' − ‖λx'‖² − ‖λx‖² is a dot product of vectors made from x and from x', and 0 for nobody.
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

SCALES = (1.0, 10.0)  # λ of the first and of the last head at the start, for inputs of unit size
OFFSET_START = 2.0  # of a point's score against nobody's


class DistanceAttention(nn.Module):
    """Heads of attention from points to the points of a context; ``by_distance=False`` is the plain dot product."""

    def __init__(self, width: int, heads: int, x_dim: int, by_distance: bool = True) -> None:
        super().__init__()
        if width % heads:
            raise InputError(f"attention of width {width} cannot have {heads} heads; expected a divisor of the width")
        self.heads, self.by_distance = heads, by_distance
        self.query, self.key_value, self.out = (nn.Linear(width, d) for d in (width, 2 * width, width))
        scales = torch.linspace(math.log(SCALES[0]), math.log(SCALES[1]), heads)
        self.log_scale = nn.Parameter(scales[:, None].repeat(1, x_dim)) if by_distance else None
        self.offset = nn.Parameter(torch.full((heads, 1, 1), OFFSET_START))
        self.nobody = nn.Parameter(torch.zeros(2, heads, 1, width // heads))  # key and value

    def keys_and_values(
        self, tokens: Float[Tensor, "task point width"], x: Float[Tensor, "task point x"]
    ) -> tuple[Float[Tensor, "task head key size"], Float[Tensor, "task head key value"]]:
        """What a context offers, nobody first."""
        tasks = len(tokens)
        keys, values = self.key_value(tokens).unflatten(-1, (2, self.heads, -1)).movedim((2, 3), (0, 2))
        score = self.offset.expand(tasks, -1, x.shape[1], 1)
        if self.log_scale is None:
            parts, unseen = [score], 1
        else:
            at = self._scaled(x)
            parts, unseen = [at, score - at.square().sum(-1, keepdim=True), -torch.ones_like(score)], x.shape[-1] + 2
        nobody = F.pad(self.nobody[0], (0, unseen)).expand(tasks, -1, -1, -1)
        keys = torch.cat([nobody, torch.cat([keys, *parts], dim=-1)], dim=2)
        return keys, torch.cat([self.nobody[1].expand(tasks, -1, -1, -1), values], dim=2)

    def forward(
        self,
        tokens: Float[Tensor, "task point width"],
        x: Float[Tensor, "task point x"],
        keys: Float[Tensor, "task head key size"],
        values: Float[Tensor, "task head key value"],
        shown: Bool[Tensor, "task 1 1 key"],
    ) -> Float[Tensor, "task point width"]:
        """What every point takes from the keys that are shown."""
        queries = self.query(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2) / math.sqrt(values.shape[-1])
        one = torch.ones_like(queries[..., :1])
        if self.log_scale is None:
            parts = [one]
        else:
            at = self._scaled(x)
            parts = [2 * at, one, at.square().sum(-1, keepdim=True)]
        queries = torch.cat([queries, *parts], dim=-1)
        taken = _attend(queries, keys, values, shown)
        return self.out(taken.transpose(1, 2).flatten(-2))

    def _scaled(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task head point x"]:
        assert self.log_scale is not None
        return x[:, None] * self.log_scale.exp()[:, None]


def _attend(queries: Tensor, keys: Tensor, values: Tensor, shown: Bool[Tensor, "task 1 1 key"]) -> Tensor:
    if queries.device.type != "cpu":
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=shown, scale=1.0)
    # PyTorch's own guards against rows without a key, at a fifth of the time; nobody is in every row.
    hidden = torch.zeros(shown.shape, dtype=queries.dtype).masked_fill_(~shown, -math.inf)
    return torch.softmax(queries @ keys.mT + hidden, dim=-1) @ values


class AttentionBlock(nn.Module):
    """Attention to the context, then a small network, each added to what a point already is (pre-norm)."""

    def __init__(self, width: int, heads: int, x_dim: int, by_distance: bool = True) -> None:
        super().__init__()
        self.attention = DistanceAttention(width, heads, x_dim, by_distance)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.expand, self.contract = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def offers(
        self, context: Float[Tensor, "task point width"], x: Float[Tensor, "task point x"]
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of a context."""
        return self.attention.keys_and_values(self.norms[0](context), x)

    def forward(
        self,
        tokens: Float[Tensor, "task point width"],
        x: Float[Tensor, "task point x"],
        offers: tuple[Tensor, Tensor],
        shown: Bool[Tensor, "task 1 1 key"],
    ) -> Float[Tensor, "task point width"]:
        """The points, with what they took from a context."""
        tokens = tokens + self.attention(self.norms[0](tokens), x, *offers, shown)
        return tokens + self.contract(F.silu(self.expand(self.norms[1](tokens))))


@dataclass(frozen=True)
class ReadContext:
    """A context as every block offers it to targets. Called with x, it gives the features of targets there."""

    attention: "ContextAttention"
    offers: Sequence[tuple[Tensor, Tensor]]
    shown: Bool[Tensor, "task 1 1 key"]

    def __call__(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task point feature"]:
        """Features of targets."""
        return self.attention.features(x, self.offers, self.shown)


class ContextAttention(nn.Module):
    """Blocks of attention that contexts and targets share; a target is a point whose y is not known."""

    def __init__(
        self,
        x_dim: int,
        y_dim: int,
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

    def read(self, context: PointSet) -> ReadContext:
        """A context, ready to be asked."""
        x = self.x_scale(context.x)
        known = torch.cat([self.y_scale(context.y), torch.ones_like(x[..., :1])], dim=-1)
        tokens = self.embed(torch.cat([x, known], dim=-1))
        shown = F.pad(context.mask, (1, 0), value=True)[:, None, None]  # nobody is always there
        offers = []
        for block in self._blocks():
            offers.append(block.offers(tokens, x))
            if len(offers) < len(self.blocks):  # what the last block would make of the context, nobody reads
                tokens = block(tokens, x, offers[-1], shown)
        return ReadContext(self, offers, shown)

    def features(
        self,
        x: Float[Tensor, "task point x"],
        offers: Sequence[tuple[Tensor, Tensor]],
        shown: Bool[Tensor, "task 1 1 key"],
    ) -> Float[Tensor, "task point feature"]:
        """What targets at x see of a context."""
        x = self.x_scale(x)
        tokens = self.embed(F.pad(x, (0, self.y_dim + 1)))
        for block, offered in zip(self._blocks(), offers, strict=True):
            tokens = block(tokens, x, offered, shown)
        return self.norm(tokens)

    def _blocks(self) -> Iterable[AttentionBlock]:
        return cast(Iterable[AttentionBlock], self.blocks)
