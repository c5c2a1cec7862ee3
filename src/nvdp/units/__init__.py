"""Units: the one place where values are standardised on the way into a model, and predictions taken back out."""

from nvdp.units.context import FARTHEST_X, FARTHEST_Y, MOST_INPUTS, MOST_POINTS, ContextUnits, TaskUnits
from nvdp.units.fixed import Units
from nvdp.units.posterior import PosteriorInUnits, warn_far

__all__ = [
    "FARTHEST_X",
    "FARTHEST_Y",
    "MOST_INPUTS",
    "MOST_POINTS",
    "ContextUnits",
    "PosteriorInUnits",
    "TaskUnits",
    "Units",
    "warn_far",
]
