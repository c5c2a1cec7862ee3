"""Set representation r = mean_i h(x_i, y_i), the text under eq. 3: what a task's points say, in any order."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.errors import InputError
from nvdp.nn.attention import AttentionBlock
from nvdp.nn.mlp import AS_GIVEN, MLP, InputScale
from nvdp.tasks import PointSet


class MeanSetEncoder(nn.Module):
    """Features h(x, y) of every point; a set is represented by their mean, an empty set by zeros.

    Several ``paths`` are separate feature networks side by side in one representation. With ``count_feature`` the
    representation ends with the logarithm of the number of points. ``hidden`` is the width of the layers before the
    last, if it is not that of the representation. Where x is seen as waves, so are their products with y: the mean of
    these over points is a Fourier coefficient of the function.
    """

    def __init__(
        self,
        x_dim: int,
        y_dim: int,
        width: int,
        layers: int,
        activation: str,
        residual: bool = False,
        count_feature: bool = False,
        paths: int = 1,
        hidden: int | None = None,
        x_scale: InputScale = AS_GIVEN,
        y_scale: InputScale = AS_GIVEN,
    ) -> None:
        super().__init__()
        inputs = x_scale.width(x_dim) + y_dim + (x_scale.width(x_dim) * y_dim if x_scale.waves else 0)
        shape = (inputs, hidden or width, layers, activation, residual, width)
        self.features = nn.ModuleList(MLP(*shape) for _ in range(paths))
        self.count_feature = count_feature
        self.x_scale, self.y_scale = x_scale, y_scale
        self.size = paths * width + count_feature

    def encode(self, points: PointSet) -> Float[Tensor, "task point feature"]:
        """h(x_i, y_i) for every entry, padded ones included."""
        x, y = self.x_scale(points.x), self.y_scale(points.y)
        products = [(x[..., :, None] * y[..., None, :]).flatten(-2)] if self.x_scale.waves else []
        pairs = torch.cat([x, y, *products], dim=-1)
        return torch.cat([path(pairs) for path in self.features], dim=-1)

    def aggregate(
        self, features: Float[Tensor, "task point feature"], *masks: Bool[Tensor, "task point"]
    ) -> tuple[Float[Tensor, "task r"], ...]:
        """The representation of each of several sets, given by masks over the same encoded points.

        Context and whole task share their points, so both come from one encoding and one product.
        """
        members = torch.stack(masks, dim=1).to(features.dtype)  # (task, set, point)
        count = members.sum(-1, keepdim=True)  # (task, set, 1)
        means = (members / count.clamp(min=1)) @ features  # (task, set, r)
        return self.with_count(means, count).unbind(1)

    def with_count(
        self, means: Float[Tensor, "*set feature"], count: Float[Tensor, "*set 1"]
    ) -> Float[Tensor, "*set r"]:
        """The representation of sets whose mean features and sizes are known."""
        return torch.cat([means, torch.log1p(count) / 5], dim=-1) if self.count_feature else means

    @property
    def point_features(self) -> int:
        """How many numbers of each point are summed; the logarithm of their count is part of r, not of any point."""
        return self.size - self.count_feature

    def of_sums(self, sums: Float[Tensor, "*set feature"], count: Float[Tensor, "*set 1"]) -> Float[Tensor, "*set r"]:
        """The representation of sets whose encoded points were added up."""
        return self.with_count(sums / count.clamp(min=1), count)

    def check_sums(self, sums: Float[Tensor, "task feature"]) -> None:
        """Refuse sums that no points can have."""

    def forward(self, points: PointSet) -> Float[Tensor, "task r"]:
        """The representation of one set per task."""
        return self.aggregate(self.encode(points), points.mask)[0]


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
