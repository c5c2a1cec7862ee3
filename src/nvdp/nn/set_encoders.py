"""Richer set representations behind the mean's interface: Bayesian aggregation, and self-attention with pooling."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.errors import InputError
from nvdp.nn.attention import AttentionBlock
from nvdp.nn.sets import MeanSetEncoder
from nvdp.tasks import PointSet

SMALLEST_VARIANCE = 1e-4
PRECISION_ROUNDING = 1e-6  # of sums in float64
HEADS = 4


class BayesianSetEncoder(MeanSetEncoder):
    """r as the posterior mean of a Gaussian that every point observes with a noise of its own (Volpp et al. 2021).

    A point says where r is, and how sure it is: r = Σ h_i/σ_i² / (1 + Σ 1/σ_i²) under the prior N(0, 1), which is what
    an empty set leaves. The more points, the further from zero: their number is known to the model.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        width = super().point_features
        self.raw_variance = nn.Linear(width, width)

    def encode(self, points: PointSet) -> Float[Tensor, "task point twice"]:
        """Features and precisions of every entry."""
        features = super().encode(points)
        precision = F.softplus(self.raw_variance(features)).add_(SMALLEST_VARIANCE).reciprocal_()
        return torch.cat([features * precision, precision], dim=-1)

    def aggregate(
        self, features: Float[Tensor, "task point twice"], *masks: Bool[Tensor, "task point"]
    ) -> tuple[Float[Tensor, "task r"], ...]:
        """Posterior means given each of several sets."""
        members = torch.stack(masks, dim=1).to(features.dtype)  # (task, set, point)
        return self.of_sums(members @ features, members.sum(-1, keepdim=True)).unbind(1)

    @property
    def point_features(self) -> int:
        """What each point says, weighted, and how sure it is."""
        return 2 * super().point_features

    def of_sums(self, sums: Float[Tensor, "*set twice"], count: Float[Tensor, "*set 1"]) -> Float[Tensor, "*set r"]:
        """Posterior means given the points' weighted features and precisions, added up."""
        weighted, precision = sums.chunk(2, dim=-1)
        return self.with_count(weighted / (1 + precision), count)

    def check_sums(self, sums: Float[Tensor, "task twice"]) -> None:
        """Refuse precisions below zero: points were taken away that had not been added."""
        precision = sums.chunk(2, dim=-1)[1]
        if (precision < -PRECISION_ROUNDING).any():
            task = int((precision < -PRECISION_ROUNDING).any(-1).nonzero()[0])
            raise InputError(f"cannot forget points that were never observed (task {task} of {len(sums)})")


class AttentiveSetEncoder(MeanSetEncoder):
    """Points of a set attend to each other, then a learned seed attends to them all (Lee et al. 2019).

    Attention is by content alone: where a point lies is part of it. An empty set gives what the seed finds with nobody.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        width = self.size - self.count_feature
        self.among, self.pool = (AttentionBlock(width, HEADS, 1, by_distance=False) for _ in range(2))
        self.seed = nn.Parameter(torch.zeros(1, 1, width))

    def aggregate(
        self, features: Float[Tensor, "task point feature"], *masks: Bool[Tensor, "task point"]
    ) -> tuple[Float[Tensor, "task r"], ...]:
        """What the seed takes from each of several sets."""
        return tuple(self._pooled(features, mask) for mask in masks)

    def _pooled(
        self, features: Float[Tensor, "task point feature"], mask: Bool[Tensor, "task point"]
    ) -> Float[Tensor, "task r"]:
        nowhere = features[..., :1]  # attention by content does not look at places
        shown = F.pad(mask, (1, 0), value=True)[:, None, None]
        tokens = self.among(features, nowhere, self.among.offers(features, nowhere), shown)
        seed = self.seed.expand(len(features), -1, -1)
        pooled = self.pool(seed, nowhere[:, :1], self.pool.offers(tokens, nowhere), shown)[:, 0]
        return self.with_count(pooled, mask.sum(-1, keepdim=True).to(features.dtype))
