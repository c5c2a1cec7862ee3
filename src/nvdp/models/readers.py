"""What a target sees of the context for itself: cross-attention, or convolutions over a grid."""

from nvdp.models.base import x_place, y_scale
from nvdp.models.config import ModelConfig
from nvdp.nn.attention import ContextAttention
from nvdp.nn.convolution import ContextConvolution, Grid

Reader = ContextAttention | ContextConvolution


def attention_reader(config: ModelConfig) -> ContextAttention:
    """Cross-attention from targets to a context."""
    sizes = (config.attention.width, config.attention.blocks, config.attention.heads)
    by_distance = config.attention.by_distance
    return ContextAttention(config.x_dim, config.y_dim, *sizes, by_distance, x_place(config), y_scale(config))


def convolution_reader(config: ModelConfig) -> ContextConvolution:
    """Convolutions over a grid on which a context is laid out."""
    sizes = (config.convolution.channels, config.convolution.blocks, config.convolution.kernel)
    grid = Grid(config.convolution.low, config.convolution.high, config.convolution.cells)
    return ContextConvolution(config.x_dim, config.y_dim, *sizes, grid, x_place(config), y_scale(config))
