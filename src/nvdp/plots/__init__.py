"""Figures. Drawing takes NumPy arrays; ``panels`` makes these arrays from models and tasks.

No function uses pyplot's global state, so any thread may draw. matplotlib is imported with the first figure.
"""

from nvdp.plots.curves import figure_training
from nvdp.plots.functions import FunctionPanel, RatesPanel, SharedWeightsPanel, figure_functions, figure_rates
from nvdp.plots.images import PictureGrid, PictureRow, completion_grid, context_grid, figure_pictures
from nvdp.plots.panels import five_point_task, gp_function_panel, oracle_panel, rates_panel, shared_weights_panel
from nvdp.plots.style import figure_paths
from nvdp.plots.tables import TablePanel, figure_tables

__all__ = [
    "FunctionPanel",
    "PictureGrid",
    "PictureRow",
    "RatesPanel",
    "SharedWeightsPanel",
    "TablePanel",
    "completion_grid",
    "context_grid",
    "figure_functions",
    "figure_paths",
    "figure_pictures",
    "figure_rates",
    "figure_tables",
    "figure_training",
    "five_point_task",
    "gp_function_panel",
    "oracle_panel",
    "rates_panel",
    "shared_weights_panel",
]
