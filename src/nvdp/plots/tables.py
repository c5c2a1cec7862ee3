"""Tasks of a table: predictions of a fitted model from a few rows of each task, and the held-out rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from nvdp.errors import InputError
from nvdp.plots.functions import draw_band, draw_functions_and_points, shared_legend
from nvdp.plots.style import FONT_SIZE, VERMILLION, WIDTH, new_figure, save_figure, tidy

ROW_HEIGHT, MAX_COLUMNS = 2.1, 2  # inches, panels


@dataclass(frozen=True)
class TablePanel:
    """One task: the prediction on a grid, the context rows, and held-out rows if there are any."""

    title: str
    x: Float[np.ndarray, " point"]
    mean: Float[np.ndarray, " point"]
    lower: Float[np.ndarray, " point"]  # of the 90 % interval
    upper: Float[np.ndarray, " point"]
    x_context: Float[np.ndarray, " context"]
    y_context: Float[np.ndarray, " context"]
    x_other: Float[np.ndarray, " other"]
    y_other: Float[np.ndarray, " other"]


def figure_tables(panels: Sequence[TablePanel], path: Path | str, x_label: str = "x", y_label: str = "y") -> list[Path]:
    """Draw the 90 % interval, the mean, context rows and held-out rows of each task, two tasks in a row.

    Args:
        panels: The tasks; `x` may be in any order.
        path: The file to write.
        x_label: Label of the x axis.
        y_label: Label of the y axis.

    Returns:
        The files written.
    """
    if not panels:
        raise InputError("a figure of tasks needs at least one panel; got 0")
    columns = min(MAX_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(WIDTH, ROW_HEIGHT * rows + 0.5)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        order = np.argsort(panel.x)
        draw_band(axes, panel.x[order], panel.lower[order], panel.upper[order], "90% interval", panel.mean[order])
        empty = np.empty((0, len(panel.x)))
        draw_functions_and_points(axes, panel.x[order], empty, panel.x_context, panel.y_context, None)
        if len(panel.x_other):
            axes.plot(
                panel.x_other,
                panel.y_other,
                linestyle="none",
                marker="o",
                markersize=4,
                markerfacecolor="none",
                markeredgecolor=VERMILLION,
                zorder=4,
                label="held-out points",
            )
        axes.set_title(panel.title, fontsize=FONT_SIZE)
        tidy(axes)
        axes.margins(x=0.02)
    for axes in grid[-1]:
        axes.set_xlabel(x_label, fontsize=FONT_SIZE)
    for axes in grid[:, 0]:
        axes.set_ylabel(y_label, fontsize=FONT_SIZE)
    shared_legend(figure)
    return save_figure(figure, path)
