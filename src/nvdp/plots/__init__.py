"""Figures: drawing takes NumPy arrays alone, ``panels`` makes the arrays from models and tasks.

Nothing here touches pyplot's global state, so figures may be drawn from any thread; matplotlib itself is
imported when the first figure is drawn.
"""

from nvdp.plots.completions import completion_grid, context_grid
from nvdp.plots.curves import figure_training
from nvdp.plots.functions import FunctionPanel, figure_functions, figure_prediction
from nvdp.plots.images import PictureGrid, PictureRow, figure_pictures
from nvdp.plots.panels import five_point_task, gp_function_panel, oracle_panel, rates_panel, shared_weights_panel
from nvdp.plots.rates import RatesPanel, SharedWeightsPanel, figure_rates

__all__ = [
    "FunctionPanel",
    "PictureGrid",
    "PictureRow",
    "RatesPanel",
    "SharedWeightsPanel",
    "completion_grid",
    "context_grid",
    "figure_functions",
    "figure_pictures",
    "figure_prediction",
    "figure_rates",
    "figure_training",
    "five_point_task",
    "gp_function_panel",
    "oracle_panel",
    "rates_panel",
    "shared_weights_panel",
]
