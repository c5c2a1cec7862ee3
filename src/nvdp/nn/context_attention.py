"""Features of a target from its own view of the context: cross-attention, in several blocks (Kim et al. 2019).

The context's points first attend to each other; a target then passes the same blocks, asking the context as it was
at each of them. So a context is read once, and any number of targets later.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.nn.attention import AttentionBlock
from nvdp.nn.inputs import AS_GIVEN, InputScale
from nvdp.tasks import PointSet


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
