"""Readers: what a target sees of the context for itself, by cross-attention or by convolutions over a grid."""

from nvdp.models.config import ModelConfig
from nvdp.nn.attention import ContextAttention
from nvdp.nn.convolution import ContextConvolution, Grid

Reader = ContextAttention | ContextConvolution


def attention_reader(config: ModelConfig) -> ContextAttention:
    """Cross-attention from targets to a context."""
    part = config.attention
    return ContextAttention(
        config.x_dim,
        config.y_dim,
        width=part.width,
        blocks=part.blocks,
        heads=part.heads,
        by_distance=part.by_distance,
        x_scale=config.inputs.place_x,
        y_scale=config.inputs.seen_y,
    )


def convolution_reader(config: ModelConfig) -> ContextConvolution:
    """Convolutions over a grid on which a context is laid out."""
    part = config.convolution
    return ContextConvolution(
        config.x_dim,
        config.y_dim,
        channels=part.channels,
        blocks=part.blocks,
        kernel=part.kernel,
        levels=part.levels,
        patch=part.patch,
        dense=part.dense,
        grid=Grid(part.low, part.high, part.cells),
        x_scale=config.inputs.place_x,
        y_scale=config.inputs.seen_y,
    )
