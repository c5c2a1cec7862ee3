"""Tasks of a table: predictions of a fitted model from a few rows of each task, and the held-out rows."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from nvdp.errors import FarNote, InputError
from nvdp.plots.functions import draw_band, draw_functions_and_points, shared_legend
from nvdp.plots.style import FONT_SIZE, GREY, VERMILLION, WIDTH, new_figure, save_figure, series_style, tidy

if TYPE_CHECKING:
    from nvdp.loading import Predictor

ROW_HEIGHT, MAX_COLUMNS = 2.1, 2  # inches, panels
GRID = 200  # points of a curve


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


def figure_tables(
    panels: Sequence[TablePanel], path: Path | str, x_label: str = "x", y_label: str = "y", dates: bool = False
) -> list[Path]:
    """Draw the 90 % interval, the mean, context rows and held-out rows of each task, two tasks in a row.

    Args:
        panels: The tasks; `x` may be in any order.
        path: The file to write.
        x_label: Label of the x axis.
        y_label: Label of the y axis.
        dates: Whether x are days since 1970, which are shown as dates.

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
        if dates:
            from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

            ticks = AutoDateLocator(maxticks=6)
            axes.xaxis.set_major_locator(ticks)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(ticks))
    for axes in grid[:, 0]:
        axes.set_ylabel(y_label, fontsize=FONT_SIZE)
    shared_legend(figure)
    return save_figure(figure, path)


def figure_calibration(levels: Sequence[float], shares: Mapping[str, Sequence[float]], path: Path | str) -> list[Path]:
    """Draw the share of outputs inside central intervals against the level of the interval.

    Args:
        levels: Of the intervals.
        shares: By name, e.g. before and after calibration, the share inside each interval.
        path: The file to write.

    Returns:
        The files written.
    """
    figure = new_figure(WIDTH / 2, WIDTH / 2.4)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, label="calibrated")
    for index, (name, values) in enumerate(shares.items()):
        colour, line = series_style(index)
        axes.plot(levels, values, color=colour, linestyle=line, marker="o", markersize=3, linewidth=1.2, label=name)
    axes.set_xlabel("level of the interval", fontsize=FONT_SIZE)
    axes.set_ylabel("share of outputs inside", fontsize=FONT_SIZE)
    axes.legend(fontsize=FONT_SIZE, frameon=False)
    tidy(axes)
    return save_figure(figure, path)


def task_panel(
    predictor: "Predictor",
    x: Any,
    y: Any,
    others: tuple[Any, Any] | None = None,
    title: str = "",
    reach: tuple[float, float] | None = None,
) -> TablePanel:
    """One task as a model predicts it from its rows: the first output over a range of the first input.

    Args:
        predictor: The model, as `nvdp.load` gives it.
        x: Inputs of the rows; those after the first are taken from the first row.
        y: Their outputs.
        others: Further rows (x, y) to show, which are not predicted from.
        title: Of the panel.
        reach: The ends of the range; by default those of training. All rows are in it.

    Returns:
        The panel for `figure_tables`.
    """
    x, y = (np.asarray(part, np.float64).reshape(len(part), -1) for part in (x, y))
    more = ([], []) if others is None else others
    shown = [np.asarray(part, np.float64).reshape(len(part), -1)[:, 0] if len(part) else np.empty(0) for part in more]
    units = predictor.units
    ends = (*units.x_low[:1], *units.x_high[:1]) if reach is None else reach
    seen = np.concatenate([[end for end in ends if math.isfinite(end)], x[:, 0], shown[0]])
    grid = np.linspace(seen.min(), seen.max(), GRID)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FarNote)  # it is seen
        prediction = predictor.adapt(x, y).predict(np.concatenate([grid[:, None], np.tile(x[:1, 1:], (GRID, 1))], 1))
    bounds = (prediction.mean, prediction.quantile(0.05), prediction.quantile(0.95))
    mean, lower, upper = (part[:, 0].numpy() for part in bounds)
    return TablePanel(title, grid, mean, lower, upper, x[:, 0], y[:, 0], *shown)
