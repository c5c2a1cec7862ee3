"""The convolutional feature extractors of few-shot classification: CONV4 for 28×28 images, CONV5 for 84×84 (VERSA's).

A block is a 3×3 convolution to 64 channels, batch norm, ReLU and 2×2 max pooling. Both give 256 features. The first
block of CONV5-PATCHES sees squares of 2×2 pixels as its channels, and its last one does not pool: as many layers and
features as CONV5 with a third of its multiplications. CONV5-WIDE is CONV5-PATCHES with up to 320 channels in its later
blocks, whose maps are small: 11 times the weights, 2.1 times the multiplications, and 1,280 features of 84×84 pixels.

Every call says which statistics batch norm uses outside training: ``running`` averages of training, so that an image's
features depend on that image alone, or those of the ``batch``, which is transductive.

The first blocks are bound by memory, so a block makes few passes over its maps: maximum pooling comes before the
normalisation, which is monotone (a negative scale is moved into the convolution), and both have one hand-derived
gradient.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nvdp.errors import InputError, unknown_name
from nvdp.nn.mlp import he_uniform_
from nvdp.nn.views import VIEWS, image_views

EPSILON, MOMENTUM, POOLED = 1e-5, 0.1, 2
STATISTICS = ("running", "batch")


@dataclass(frozen=True)
class ConvShape:
    """Channels that every block gives, and whether pooling of an odd number of rows keeps the last row.

    With `patches`, the first block sees squares of 2×2 pixels and the last one does not pool.
    """

    channels: tuple[int, ...]
    keep_odd: bool
    patches: bool = False

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.channels)

    def features(self, size: int) -> int:
        """Features of a square image.

        >>> EXTRACTORS["conv4"].features(28), EXTRACTORS["conv5"].features(84), EXTRACTORS["conv5-wide"].features(84)
        (256, 256, 1280)
        """
        for _ in range(self.blocks):  # patches halve an image once and pool once less
            size = (size + self.keep_odd) // 2
        return self.channels[-1] * size * size

    def by_block(self, channels: int) -> list[tuple[int, int]]:
        """Channels that every block sees and gives, for images with so many channels.

        >>> EXTRACTORS["conv5-patches"].by_block(3)[:2]
        [(12, 64), (64, 64)]
        """
        first = channels * POOLED**2 if self.patches else channels
        return list(zip((first, *self.channels), self.channels, strict=False))

    def patched(self, images: Float[Tensor, "image channel row column"]) -> Float[Tensor, "image input row2 column2"]:
        """What the first block sees of images."""
        if not self.patches:
            return images
        even = images.shape[-1] // POOLED * POOLED
        return F.pixel_unshuffle(images[..., :even, :even], POOLED)

    def window(self, block: int) -> int:
        """Rows, and columns, of the squares that a block pools."""
        return 1 if self.patches and block + 1 == self.blocks else POOLED


EXTRACTORS = {
    "conv4": ConvShape((64,) * 4, keep_odd=True),
    "conv4-wide": ConvShape((64, 128, 256, 256), keep_odd=True),
    "conv5": ConvShape((64,) * 5, keep_odd=False),
    "conv5-patches": ConvShape((64,) * 5, keep_odd=False, patches=True),
    "conv5-wide": ConvShape((64, 96, 192, 320, 320), keep_odd=False, patches=True),
}


def extractor_shape(name: str) -> ConvShape:
    """The shape of the extractor of that name."""
    if name not in EXTRACTORS:
        raise unknown_name("extractor", name, EXTRACTORS)
    return EXTRACTORS[name]


def pooled(
    maps: Float[Tensor, "image channel row column"], keep_odd: bool, window: int = POOLED, relu: bool = True
) -> Tensor:
    """Max pooling, then ReLU: the same as ReLU first, with a quarter of its work."""
    maps = F.max_pool2d(maps, window, ceil_mode=keep_odd)
    return F.relu(maps) if relu else maps


def convolved(
    maps: Float[Tensor, "image channel row column"], weight: Tensor, bias: Tensor | None = None
) -> Float[Tensor, "image more row column"]:
    """A 3×3 convolution that keeps the size; the result has its channels last in memory.

    With one channel both layouts look alike, and PyTorch would take the slower one: an empty channel tells them apart.
    """
    if maps.shape[1] == 1:
        maps, weight = (F.pad(part, (0, 0, 0, 0, 0, 1)) for part in (maps, weight))
    maps = maps.contiguous(memory_format=torch.channels_last)
    return F.conv2d(maps, weight, bias, padding=1)


class _NormalisedMaximum(torch.autograd.Function):
    """ReLU(batch norm(maximum pooling)) for a scale that is not negative; also the batch's mean and variance.

    Without `relu` the result keeps its sign.

    With the pooled maps p, their normalised values ẑ = (p − m)/σ and g the gradient after the ReLU, the gradient of
    the maps is (scale/σ) [scatter(g) − mean(g) − ẑ mean(g ẑ)], where the means divide by the number of unpooled
    values: sums over g and g ẑ need the pooled maps alone.
    """

    @staticmethod
    def forward(
        ctx: Any, maps: Tensor, scale: Tensor, shift: Tensor, keep_odd: bool, window: int, relu: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = torch.batch_norm_update_stats(maps, None, None, 0.0)
        inverse = torch.rsqrt(variance + EPSILON)
        largest, places = F.max_pool2d(maps, window, ceil_mode=keep_odd, return_indices=True)
        factor = scale * inverse
        result = torch.addcmul(_each(shift - mean * factor), largest, _each(factor))
        if relu:
            result.relu_()
        ctx.save_for_backward(maps, largest, places, result, mean, inverse, scale)
        ctx.keep_odd, ctx.window, ctx.relu = keep_odd, [window, window], relu
        ctx.mark_non_differentiable(mean, variance)
        return result, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        maps, largest, places, result, mean, inverse, scale = ctx.saved_tensors
        gradient = torch.where(result > 0, gradient, 0) if ctx.relu else gradient
        along = (0, 2, 3)
        shift_gradient = gradient.sum(along)
        scale_gradient = ((gradient * largest).sum(along) - mean * shift_gradient) * inverse
        count, factor = maps.numel() // maps.shape[1], scale * inverse
        slope = factor * inverse * scale_gradient / count
        offset = slope * mean - factor * shift_gradient / count
        scattered = torch.ops.aten.max_pool2d_with_indices_backward(
            gradient * _each(factor), maps, ctx.window, ctx.window, [0, 0], [1, 1], ctx.keep_odd, places
        )
        maps_gradient = scattered.addcmul_(maps, _each(-slope)).add_(_each(offset))
        return maps_gradient, scale_gradient, shift_gradient, None, None, None


def _each(channels: Float[Tensor, " channel"]) -> Float[Tensor, "channel 1 1"]:
    return channels[:, None, None]


class ConvBlock(nn.Module):
    """Convolution, batch norm, ReLU (or none) and pooling; no bias, as batch norm subtracts the mean."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, inputs: int, channels: int, *, relu: bool = True) -> None:
        super().__init__()
        self.relu = relu
        self.weight = nn.Parameter(torch.empty(channels, inputs, 3, 3))
        he_uniform_(self.weight, 9 * inputs)
        self.scale, self.shift = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, maps: Tensor, statistics: str, keep_odd: bool, window: int = POOLED) -> Tensor:
        """The maps after the block."""
        if self.training or statistics == "batch":
            return self._by_batch(maps, keep_odd, window)
        factor = self.scale * torch.rsqrt(self.running_var + EPSILON)  # one pass: batch norm folded into the weights
        bias = self.shift - self.running_mean * factor
        return pooled(convolved(maps, self.weight * factor[:, None, None, None], bias), keep_odd, window, self.relu)

    def _by_batch(self, maps: Tensor, keep_odd: bool, window: int) -> Tensor:
        if maps.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            mean, variance = (self.running_mean, self.running_var) if self.training else (None, None)
            maps = convolved(maps, self.weight)
            maps = F.batch_norm(maps, mean, variance, self.scale, self.shift, True, MOMENTUM, EPSILON)
            return pooled(maps, keep_odd, window, self.relu)
        sign = torch.where(self.scale < 0, -1.0, 1.0).to(self.scale)  # a maximum becomes a minimum where it is −1
        maps = convolved(maps, self.weight * sign[:, None, None, None])
        result, mean, variance = _NormalisedMaximum.apply(
            maps, self.scale * sign, self.shift, keep_odd, window, self.relu
        )
        if self.training:
            count = maps.numel() // maps.shape[1]
            with torch.no_grad():
                self.running_mean.lerp_(mean * sign, MOMENTUM)
                self.running_var.lerp_(variance * (count / max(count - 1, 1)), MOMENTUM)  # as F.batch_norm: unbiased
        return result


def principal_projection(
    features: Float[Tensor, "image feature"], components: int
) -> Float[Tensor, "feature component"]:
    """The orthonormal projection that keeps most of the squares of features at unit length.

    This is principal component analysis without centring, as cosines are to be kept. The largest entry of every column
    is positive, so that the result does not depend on the signs of an eigensolver.

    >>> principal_projection(torch.tensor([[3.0, 0.1], [-2.0, 0.0], [0.0, 1.0]]), 1).round()
    tensor([[1.],
            [0.]])
    """
    unit = F.normalize(features.double(), dim=-1)
    projection = torch.linalg.eigh(unit.mT @ unit).eigenvectors.flip(-1)[:, :components]
    largest = projection.gather(0, projection.abs().argmax(0, keepdim=True))
    return (projection * largest.sign()).to(features.dtype)


class ConvExtractor(nn.Module):
    """Images to features, with channels last in memory: on a CPU 1.2 to 2.8 times as fast as channels first.

    Without `last_relu` features have both signs, so cosine similarities use the whole sphere (Gidaris and Komodakis
    2018). Outside training an image's features are the mean over its `views`. With `components`, features are reduced
    to so many by a `projection`, which is part of the state and is not trained; this needs the `size` of images.

    >>> extractor = ConvExtractor("conv4", 1).eval()
    >>> extractor(torch.rand(3, 1, 28, 28)).shape
    torch.Size([3, 256])
    """

    projection: Tensor | None

    def __init__(
        self,
        name: str,
        channels: int,
        *,
        last_relu: bool = True,
        views: str = "image",
        size: int = 28,
        components: int | None = None,
    ) -> None:
        super().__init__()
        if views not in VIEWS:
            raise unknown_name("views of an image", views, VIEWS)
        self.shape, self.views = extractor_shape(name), views
        last = self.shape.blocks - 1
        self.blocks = nn.ModuleList(
            ConvBlock(*block, relu=last_relu or index < last)
            for index, block in enumerate(self.shape.by_block(channels))
        )
        kept = None if components is None else torch.eye(self.shape.features(size), components)
        self.register_buffer("projection", kept)

    def forward(
        self, images: Float[Tensor, "image channel row column"], statistics: str = "running"
    ) -> Float[Tensor, "image feature"]:
        """Features of every image. In training mode, batch norm always uses and averages the batch's statistics."""
        check_statistics(statistics)
        views = [images] if self.training else image_views(images, self.views)
        features = torch.stack([self._features(view, statistics) for view in views]).mean(0)
        return features if self.projection is None else features @ self.projection

    def load_blocks(self, blocks: nn.ModuleList) -> None:
        """Take the weights and statistics of another extractor's blocks."""
        self.blocks.load_state_dict(blocks.state_dict())

    def _features(self, images: Tensor, statistics: str) -> Float[Tensor, "image feature"]:
        maps = self.shape.patched(images)
        for index, block in enumerate(self.blocks):
            maps = block(maps, statistics, self.shape.keep_odd, self.shape.window(index))
        return maps.flatten(1)


def check_components(setting: str, components: int | None, features: int) -> None:
    """Raise an error unless so many components can be kept of so many features; `setting` says where they stand."""
    if components is not None and not 1 <= components < features:
        raise InputError(
            f"{setting} is {components}; expected from 1 to {features - 1}, or null (--components 0) for all features"
        )


def check_statistics(statistics: str, known: tuple[str, ...] = STATISTICS) -> None:
    """Raise an error unless `statistics` is one of the known names."""
    if statistics not in known:
        raise InputError(f"batch norm's statistics are '{statistics}'; expected {' or '.join(known)}")
