"""Set encoders: a permutation-invariant representation r of a task's points, such as r = mean_i h(x_i, y_i) (eq. 3)."""

from typing import Any, ClassVar

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

    Where x has Fourier features, their products with y are inputs too: the mean of these over points is a Fourier
    coefficient of the function.

    Args:
        x_dim: inputs of a point.
        y_dim: outputs of a point.
        size: width of h, and of the representation if there is one path.
        layers: layers of h.
        activation: of every layer.
        residual: whether h has normalised residual blocks.
        width: of the layers before the last; `size` if None.
        paths: number of networks h whose representations are concatenated.
        x_scale: scaling of x.
        y_scale: scaling of y.
    """

    from_sums: ClassVar[bool] = True  # whether r follows from sums over points (`of_sums`); a subclass must say

    def __init__(
        self,
        x_dim: int,
        y_dim: int,
        *,
        size: int,
        layers: int,
        activation: str,
        residual: bool = False,
        width: int | None = None,
        paths: int = 1,
        x_scale: InputScale = AS_GIVEN,
        y_scale: InputScale = AS_GIVEN,
    ) -> None:
        super().__init__()
        inputs = x_scale.width(x_dim) + y_dim + (x_scale.width(x_dim) * y_dim if x_scale.fourier else 0)
        shape = (inputs, width or size, layers, activation)
        self.features = nn.ModuleList(MLP(*shape, residual=residual, outputs=size) for _ in range(paths))
        self.x_scale, self.y_scale = x_scale, y_scale
        self.size = paths * size

    def encode(self, points: PointSet) -> Float[Tensor, "task point feature"]:
        """h(x_i, y_i) for every entry, padded ones included."""
        x, y = self.x_scale(points.x), self.y_scale(points.y)
        products = [(x[..., :, None] * y[..., None, :]).flatten(-2)] if self.x_scale.fourier else []
        pairs = torch.cat([x, y, *products], dim=-1)
        return torch.cat([path(pairs) for path in self.features], dim=-1)

    def aggregate(
        self, features: Float[Tensor, "task point feature"], *masks: Bool[Tensor, "task point"]
    ) -> tuple[Float[Tensor, "task r"], ...]:
        """The representation of each of several sets, given by masks over the same encoded points.

        Context and whole task share their points, so both need only one encoding and one product.
        """
        members = torch.stack(masks, dim=1).to(features.dtype)  # (task, set, point)
        count = members.sum(-1, keepdim=True)  # (task, set, 1)
        means = (members / count.clamp(min=1)) @ features  # (task, set, r)
        return means.unbind(1)

    @property
    def point_features(self) -> int:
        """Width of what is summed over points."""
        return self.size

    def of_sums(self, sums: Float[Tensor, "*set feature"], count: Float[Tensor, "*set 1"]) -> Float[Tensor, "*set r"]:
        """The representation of sets from the sums of their encoded points."""
        return sums / count.clamp(min=1)

    def check_sums(self, sums: Float[Tensor, "task feature"]) -> None:
        """Raise an error for sums that no set of points can have."""

    def forward(self, points: PointSet) -> Float[Tensor, "task r"]:
        """The representation of one set per task."""
        return self.aggregate(self.encode(points), points.mask)[0]


SMALLEST_VARIANCE = 1e-4
PRECISION_ROUNDING = 1e-6  # of sums in float64
HEADS = 4


class BayesianSetEncoder(MeanSetEncoder):
    """Bayesian aggregation: every point observes r with Gaussian noise of its own variance σ_i² (Volpp et al. 2021).

    r = Σ h_i/σ_i² / (1 + Σ 1/σ_i²) is the posterior mean under the prior N(0, 1); an empty set gives 0. More points
    move r further from 0, so that it also depends on their number.
    """

    def __init__(self, x_dim: int, y_dim: int, **settings: Any) -> None:
        super().__init__(x_dim, y_dim, **settings)
        width = super().point_features
        self.raw_variance = nn.Linear(width, width)

    def encode(self, points: PointSet) -> Float[Tensor, "task point twice"]:
        """Features times precisions, and precisions 1/σ_i², of every entry."""
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
        """Width of what is summed over points: weighted features and precisions."""
        return 2 * super().point_features

    def of_sums(self, sums: Float[Tensor, "*set twice"], count: Float[Tensor, "*set 1"]) -> Float[Tensor, "*set r"]:
        """Posterior means from the sums of weighted features and of precisions."""
        weighted, precision = sums.chunk(2, dim=-1)
        return weighted / (1 + precision)

    def check_sums(self, sums: Float[Tensor, "task twice"]) -> None:
        """Raise an error for precisions below zero: points were removed that had not been added."""
        precision = sums.chunk(2, dim=-1)[1]
        if (precision < -PRECISION_ROUNDING).any():
            task = int((precision < -PRECISION_ROUNDING).any(-1).nonzero()[0])
            raise InputError(f"cannot forget points that were never observed (task {task} of {len(sums)})")


class AttentiveSetEncoder(MeanSetEncoder):
    """Self-attention among points, then pooling by a learned query (Set Transformer, Lee et al. 2019).

    Attention is by dot products of tokens, which contain x. In an empty set the query attends to the null token alone.
    """

    from_sums = False

    def __init__(self, x_dim: int, y_dim: int, **settings: Any) -> None:
        super().__init__(x_dim, y_dim, **settings)
        width = self.size
        self.among, self.pool = (AttentionBlock(width, HEADS, 1, by_distance=False) for _ in range(2))
        self.seed = nn.Parameter(torch.zeros(1, 1, width))

    def aggregate(
        self, features: Float[Tensor, "task point feature"], *masks: Bool[Tensor, "task point"]
    ) -> tuple[Float[Tensor, "task r"], ...]:
        """The pooled output for each of several sets."""
        return tuple(self._pooled(features, mask) for mask in masks)

    def _pooled(
        self, features: Float[Tensor, "task point feature"], mask: Bool[Tensor, "task point"]
    ) -> Float[Tensor, "task r"]:
        no_x = features[..., :1]  # a placeholder: dot-product attention does not use x
        tokens = self.among(features, no_x, self.among.keys_and_values(features, no_x, mask))
        query = self.seed.expand(len(features), -1, -1)
        return self.pool(query, no_x[:, :1], self.pool.keys_and_values(tokens, no_x, mask))[:, 0]


SET_ENCODERS: dict[str, type[MeanSetEncoder]] = {
    "mean": MeanSetEncoder,
    "bayesian": BayesianSetEncoder,
    "attention": AttentiveSetEncoder,
}
