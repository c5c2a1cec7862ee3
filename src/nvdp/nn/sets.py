"""Set representation r = mean_i h(x_i, y_i), the text under eq. 3: what a task's points say, in any order."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from nvdp.nn.inputs import AS_GIVEN, InputScale
from nvdp.nn.mlp import MLP
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
