"""What a target sees of the context for itself: cross-attention, or convolutions over a grid."""

from nvdp.models.base import x_place, y_scale
from nvdp.models.config import ModelConfig
from nvdp.nn.attention import ContextAttention
from nvdp.nn.convolution import ContextConvolution, Grid

Reader = ContextAttention | ContextConvolution


def attention_reader(config: ModelConfig) -> ContextAttention:
    """Cross-attention from targets to a context."""
    sizes = (config.attention_width, config.attention_blocks, config.attention_heads)
    by_distance = config.attention_by_distance
    return ContextAttention(config.x_dim, config.y_dim, *sizes, by_distance, x_place(config), y_scale(config))


def convolution_reader(config: ModelConfig) -> ContextConvolution:
    """Convolutions over a grid on which a context is laid out."""
    sizes = (config.conv_channels, config.conv_blocks, config.conv_kernel)
    grid = Grid(config.grid_low, config.grid_high, config.grid_cells)
    return ContextConvolution(config.x_dim, config.y_dim, *sizes, grid, x_place(config), y_scale(config))
