"""Features of a target from convolutions over a gridded context, as in ConvCNP (Gordon et al. 2020).

A context becomes channels on a regular grid: the density of its points near each cell, and their mean y there.
Convolutions are translation equivariant. For one or two inputs of known range.

With several levels the convolutions form a U-Net (Ronneberger et al. 2015). Each level halves the number of cells on an
axis, so the same kernel reaches twice as far at half the cost. A U-Net is equivariant to moves by whole cells of its
coarsest level.

Images have a cell for every pixel. There the finest level costs most: `patch` > 1 moves squares of cells into channels
before the convolutions and back after them, which loses nothing and needs patch² times fewer positions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from nvdp.errors import InputError
from nvdp.nn.mlp import AS_GIVEN, InputScale
from nvdp.tasks import PointSet

REACH = 0.5  # initial length scale of a point on the grid, in cells
FURTHEST = 80.0  # squared distance, beyond which exp would underflow, which is slow
LITTLE = 1e-4  # keeps the mean y of a cell far from all points near 0


@dataclass(frozen=True)
class Grid:
    """Cells on every axis from `low` to `high`, both ends included."""

    low: float
    high: float
    cells: int

    @property
    def step(self) -> float:
        """The distance between neighbouring cells."""
        return (self.high - self.low) / (self.cells - 1)


@dataclass(frozen=True)
class GriddedContext:
    """A context on the grid after all convolutions. Called with x, it gives the features of targets there."""

    convolution: "ContextConvolution"
    maps: Float[Tensor, "task channel row column"]

    def __call__(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task point feature"]:
        """Features of targets by linear interpolation between cells; outside the grid, those of its edge."""
        return self.convolution.features(x, self.maps)


class ConvolutionBlock(nn.Module):
    """A residual block: depthwise (or, if `dense`, full) convolution, then a 1 × 1 convolution.

    ``compute`` is `fused_block`, or `plain_block` to compare with.
    """

    def __init__(self, channels: int, kernel: tuple[int, int], dense: bool = False) -> None:
        super().__init__()
        around = (kernel[0] // 2, kernel[1] // 2)
        self.spatial = nn.Conv2d(channels, channels, kernel, padding=around, groups=1 if dense else channels)
        self.across = nn.Conv2d(channels, channels, 1)
        self.compute = fused_block

    def forward(self, maps: Float[Tensor, "task channel row column"]) -> Float[Tensor, "task channel row column"]:
        """The maps after the block."""
        spatial, across = self.spatial, self.across
        assert spatial.bias is not None
        assert across.bias is not None
        return self.compute(maps, spatial.weight, spatial.bias, across.weight, across.bias)


def plain_block(
    maps: Float[Tensor, "task channel row column"],
    spatial: Float[Tensor, "channel group high wide"],
    spatial_bias: Float[Tensor, " channel"],
    across: Float[Tensor, "channel channel 1 1"],
    across_bias: Float[Tensor, " channel"],
) -> Float[Tensor, "task channel row column"]:
    """maps + across(silu(spatial(silu(maps)))) by plain autograd: the reference for `fused_block`."""
    filtered = F.conv2d(F.silu(maps), spatial, spatial_bias, padding=_around(spatial), groups=_groups(spatial))
    return maps + F.conv2d(F.silu(filtered), across, across_bias)


def fused_block(
    maps: Float[Tensor, "task channel row column"],
    spatial: Float[Tensor, "channel group high wide"],
    spatial_bias: Float[Tensor, " channel"],
    across: Float[Tensor, "channel channel 1 1"],
    across_bias: Float[Tensor, " channel"],
) -> Float[Tensor, "task channel row column"]:
    """The same with hand-derived gradients, differentiable once.

    Channels are the last axis in memory, so that the 1 × 1 convolution is one product of matrices. PyTorch's gradient
    of a depthwise convolution takes two to three times as long with the gradient of its bias, which is only a sum.

    >>> ones = torch.ones(1, 2, 1, 3)
    >>> fused_block(ones, torch.ones(2, 1, 1, 1), torch.zeros(2), torch.zeros(2, 2, 1, 1), torch.ones(2))[0, :, 0, 0]
    tensor([2., 2.])
    """
    parts = (maps, spatial, spatial_bias, across, across_bias)
    device = maps.device.type
    training = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if not training or device != "cpu" or torch.is_autocast_enabled(device):
        return plain_block(*parts)
    return _Block.apply(*parts)


class _Block(torch.autograd.Function):
    """The slopes of SiLU are computed from its inputs in the backward pass; to keep them takes longer."""

    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> Tensor:
        maps, spatial, spatial_bias, across, across_bias = parts
        maps = maps.contiguous(memory_format=torch.channels_last)
        inputs = F.silu(maps)
        filtered = F.conv2d(inputs, spatial, spatial_bias, padding=_around(spatial), groups=_groups(spatial))
        filtered = filtered.contiguous(memory_format=torch.channels_last)
        hidden = F.silu(_by_cell(filtered))
        ctx.save_for_backward(maps, inputs, filtered, hidden, spatial, across)
        outputs = torch.addmm(_by_cell(maps), hidden, across[:, :, 0, 0].mT).add_(across_bias)
        return outputs.view(_by_cell_shape(maps)).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        maps, inputs, filtered, hidden, spatial, across = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        by_cell = _by_cell(gradient)
        across_gradient = torch.mm(by_cell.mT, hidden)[:, :, None, None]
        by_filtered = torch.ops.aten.silu_backward(torch.mm(by_cell, across[:, :, 0, 0]), _by_cell(filtered))
        by_inputs, spatial_gradient, _ = torch.ops.aten.convolution_backward(
            by_filtered.view(_by_cell_shape(gradient)).permute(0, 3, 1, 2),
            inputs,
            spatial,
            None,
            [1, 1],
            _around(spatial),
            [1, 1],
            False,
            [0, 0],
            _groups(spatial),
            [True, True, False],
        )
        # As matrices: with a grid of one row, operations on four axes may not see that all have one layout.
        by_inputs = _by_cell(by_inputs.contiguous(memory_format=torch.channels_last))
        by_maps = torch.ops.aten.silu_backward(by_inputs, _by_cell(maps)).add_(by_cell)
        by_maps = by_maps.view(_by_cell_shape(gradient)).permute(0, 3, 1, 2)
        return by_maps, spatial_gradient, by_filtered.sum(0), across_gradient, by_cell.sum(0)


def _around(kernel: Tensor) -> list[int]:
    """The padding with which a convolution keeps the number of cells."""
    return [size // 2 for size in kernel.shape[-2:]]


def _groups(kernel: Tensor) -> int:
    return kernel.shape[0] // kernel.shape[1]


def _by_cell_shape(maps: Float[Tensor, "task channel row column"]) -> tuple[int, int, int, int]:
    tasks, channels, rows, columns = maps.shape
    return tasks, rows, columns, channels


def _by_cell(maps: Float[Tensor, "task channel row column"]) -> Float[Tensor, "cell channel"]:
    """A view of maps whose channels are the last axis in memory: one row a cell."""
    return maps.permute(0, 2, 3, 1).reshape(-1, maps.shape[1])


class ContextConvolution(nn.Module):
    """Context → grid → convolutions. With one input the grid has one row.

    Args:
        x_dim: inputs of a point, 1 or 2.
        y_dim: outputs of a point.
        channels: of the convolutions.
        blocks: residual blocks of each stage; a U-Net has 2 · `levels` − 1 stages.
        kernel: width of the convolutions in cells.
        grid: the cells.
        levels: resolutions of the U-Net; 1 is a plain stack of blocks.
        patch: cells of an axis that become channels of one position.
        dense: full convolutions, not depthwise ones.
        x_scale: scaling of x.
        y_scale: scaling of y.
    """

    def __init__(
        self,
        x_dim: int,
        y_dim: int,
        *,
        channels: int,
        blocks: int,
        kernel: int,
        grid: Grid,
        levels: int = 1,
        patch: int = 1,
        dense: bool = False,
        x_scale: InputScale = AS_GIVEN,
        y_scale: InputScale = AS_GIVEN,
    ) -> None:
        super().__init__()
        if x_dim not in (1, 2):
            raise InputError(f"convolutions over a grid need 1 or 2 inputs; the task has {x_dim}")
        self.x_dim, self.grid, self.x_scale, self.y_scale, self.size = x_dim, grid, x_scale, y_scale, channels
        self.log_reach = nn.Parameter(torch.tensor(math.log(REACH * grid.step)))
        shape = (1 if x_dim == 1 else kernel, kernel)
        self.patch = (1 if x_dim == 1 else patch, patch)
        cells = self.patch[0] * self.patch[1]
        self.first = nn.Conv2d((1 + y_dim) * cells, channels, shape, padding=(shape[0] // 2, shape[1] // 2))
        self.blocks = nn.ModuleList(ConvolutionBlock(channels, shape, dense) for _ in range(blocks * (2 * levels - 1)))
        self.last = nn.Conv2d(channels, channels * cells, 1) if patch > 1 else None
        self.levels, self.pooled = levels, (1 if x_dim == 1 else 2, 2)

    def read(self, context: PointSet) -> GriddedContext:
        """Encode a context once, for any number of targets."""
        near = self._near(self.x_scale(context.x))
        values = torch.cat([torch.ones_like(context.y[..., :1]), self.y_scale(context.y)], dim=-1)
        values = (values * context.mask[..., None]).mT  # (task, 1 + y, point)
        if self.x_dim == 1:
            gridded = (values @ near[0])[:, :, None]  # (task, 1 + y, row, column)
        else:
            gridded = (near[0][:, None] * values[..., None]).mT @ near[1][:, None]
        density, sums = gridded[:, :1], gridded[:, 1:]
        maps = torch.cat([density, sums / (density + LITTLE)], dim=1)
        size = maps.shape[-2:]
        maps = self._convolved(self.first(self._patches(maps)))
        return GriddedContext(self, maps if self.last is None else self._cells(F.silu(maps), size))

    def _patches(self, maps: Float[Tensor, "task channel row column"]) -> Float[Tensor, "task more height width"]:
        """Squares of cells as channels of one position; cells beyond the grid's end are empty."""
        rows, columns = self.patch
        maps = F.pad(maps, (0, -maps.shape[-1] % columns, 0, -maps.shape[-2] % rows))
        parts = maps.unflatten(-1, (-1, columns)).unflatten(-3, (-1, rows))  # (task, channel, height, rows, width, …)
        patches = parts.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
        return patches.contiguous(memory_format=torch.channels_last)

    def _cells(self, maps: Float[Tensor, "task channel height width"], size: Sequence[int]) -> Tensor:
        """The features of every cell again."""
        assert self.last is not None
        rows, columns = self.patch
        parts = self.last(maps).permute(0, 2, 3, 1).unflatten(-1, (rows, columns, -1))  # (task, height, width, rows, …)
        cells = parts.permute(0, 1, 3, 2, 4, 5).flatten(3, 4).flatten(1, 2)  # (task, row, column, channel)
        return cells[:, : size[0], : size[1]].permute(0, 3, 1, 2)

    def _convolved(self, maps: Float[Tensor, "task channel row column"]) -> Float[Tensor, "task channel row column"]:
        """Down to the coarsest level and up again; the finer levels' maps are added on the way up."""
        each = len(self.blocks) // (2 * self.levels - 1)
        finer: list[Tensor] = []
        for stage, start in enumerate(range(0, len(self.blocks), each)):
            if stage >= self.levels:
                beside = finer.pop()
                maps = beside + F.interpolate(maps, size=beside.shape[-2:], mode="nearest")
            for block in cast(Sequence[ConvolutionBlock], self.blocks[start : start + each]):
                maps = block(maps)
            if stage < self.levels - 1:
                finer.append(maps)
                maps = F.avg_pool2d(maps, self.pooled, ceil_mode=True)
        return maps

    def features(
        self, x: Float[Tensor, "task point x"], maps: Float[Tensor, "task channel row column"]
    ) -> Float[Tensor, "task point feature"]:
        """The maps interpolated at x."""
        half = (self.grid.high - self.grid.low) / 2
        position = (self.x_scale(x) - self.grid.low) / half - 1  # [−1, 1] from end to end
        position = position.flip(-1) if self.x_dim == 2 else F.pad(position, (0, 1))  # column first, then row
        features = F.grid_sample(maps, position[:, :, None], padding_mode="border", align_corners=True)
        return features[..., 0].mT

    def _near(self, x: Float[Tensor, "task point x"]) -> Sequence[Float[Tensor, "task point cell"]]:
        """RBF weights between every point and every cell, for each axis."""
        cells = torch.linspace(self.grid.low, self.grid.high, self.grid.cells, dtype=x.dtype, device=x.device)
        distances = (x[..., None] - cells) / self.log_reach.exp()  # (task, point, x, cell)
        return torch.exp(-0.5 * distances.square().clamp(max=FURTHEST)).unbind(2)
