"""Tasks of a table: predictions of a fitted model from a few rows of each task, and the held-out rows."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from nvdp.errors import FarNote, InputError
from nvdp.plots.functions import draw_band, draw_functions_and_points, shared_legend
from nvdp.plots.style import FONT_SIZE, GREY, VERMILLION, WIDTH, new_figure, save_figure, series_style, tidy
from nvdp.units.fixed import number_columns

if TYPE_CHECKING:
    from nvdp.data.tables import Columns
    from nvdp.loading import Predictor

ROW_HEIGHT, MAX_COLUMNS = 2.1, 2  # inches, panels
GRID = 200  # points of a curve
# Ticks that are years, months, days, hours, minutes or seconds, and what is written once under their axis.
DATES = ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%S"]
DATE_OFFSETS = ["", "%Y", "%Y", "%Y-%m-%d", "%Y-%m-%d", "%Y-%m-%d %H:%M"]


class TaskRows(NamedTuple):
    """The rows of a task to predict from, and `others` (x, y) that are only shown."""

    title: str
    x: Any
    y: Any
    others: tuple[Any, Any] | None = None


@dataclass(frozen=True)
class TablePanel:
    """One output of one task: the prediction on a grid, the context rows, and held-out rows if there are any."""

    title: str
    x: Float[np.ndarray, " point"]
    mean: Float[np.ndarray, " point"]
    lower: Float[np.ndarray, " point"]  # of the 90 % interval
    upper: Float[np.ndarray, " point"]
    x_context: Float[np.ndarray, " context"]
    y_context: Float[np.ndarray, " context"]
    x_other: Float[np.ndarray, " other"]
    y_other: Float[np.ndarray, " other"]
    y_label: str | None = None  # of its output; that of the figure, if None


def figure_tables(
    panels: Sequence[TablePanel],
    path: Path | str,
    x_label: str = "x",
    y_label: str = "y",
    dates: bool = False,
    log: Sequence[str] = (),
) -> list[Path]:
    """Draw the 90 % interval, the mean, context rows and held-out rows of each panel, two in a row.

    Panels of one output share their y axis, and come after each other.

    Args:
        panels: One output of one task each; `x` may be in any order.
        path: The file to write.
        x_label: Label of the x axis.
        y_label: Label of the y axis.
        dates: Whether x are days since 1970, which are shown as dates.
        log: The labels of axes that are logarithmic.

    Returns:
        The files written.
    """
    if not panels:
        raise InputError("a figure of tasks needs at least one panel; got 0")
    labels = [y_label if panel.y_label is None else panel.y_label for panel in panels]
    groups = [list(group) for _, group in groupby(range(len(panels)), lambda place: labels[place])]
    columns = min(MAX_COLUMNS, max(map(len, groups)))
    rows = [group[start : start + columns] for group in groups for start in range(0, len(group), columns)]
    figure = new_figure(WIDTH, ROW_HEIGHT * len(rows) + 0.5)
    grid = figure.subplots(len(rows), columns, sharex=True, squeeze=False)
    first: dict[str, Any] = {}
    for row, places in enumerate(rows):
        for column, axes in enumerate(grid[row]):
            if column >= len(places):
                axes.set_visible(False)
                continue
            label = labels[places[column]]
            if label in first:
                axes.sharey(first[label])
            first.setdefault(label, axes)
            _draw_panel(axes, panels[places[column]])
            axes.set_yscale("log" if label in log else "linear")
            if column:
                axes.tick_params(labelleft=False)
            else:
                axes.set_ylabel(label, fontsize=FONT_SIZE, parse_math=False)
            if all(column >= len(below) for below in rows[row + 1 :]):  # the last of its column
                _label_x(axes, x_label, dates, x_label in log)
    shared_legend(figure)
    return save_figure(figure, path)


def _draw_panel(axes: Any, panel: TablePanel) -> None:
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
    axes.set_title(panel.title, fontsize=FONT_SIZE, parse_math=False)  # names of a table may hold a $
    tidy(axes)
    axes.margins(x=0.02)


def _label_x(axes: Any, label: str, dates: bool, log: bool) -> None:
    axes.set_xlabel(label, fontsize=FONT_SIZE, parse_math=False)
    axes.tick_params(labelbottom=True)
    if log:
        axes.set_xscale("log")
    if dates:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        ticks = AutoDateLocator(minticks=3, maxticks=7)
        axes.xaxis.set_major_locator(ticks)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(ticks, None, DATES, DATE_OFFSETS))
        axes.xaxis.get_offset_text().set_fontsize(FONT_SIZE)


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


def figure_tasks(
    predictor: "Predictor",
    tasks: Sequence[TaskRows],
    path: Path | str,
    columns: "Columns",
    reach: tuple[float, float] | None = None,
) -> list[Path]:
    """Draw tasks as a model predicts them from their rows: every output over a range of the first input.

    Args:
        predictor: The model, as `nvdp.load` gives it.
        tasks: The rows of each.
        path: The file to write.
        columns: Names of inputs and outputs, and which are dates or taken by their logarithm.
        reach: The ends of the range; by default those of training. All rows are in it.

    Returns:
        The files written.
    """
    x = columns.x[0]
    each = [task_panels(predictor, task, columns, reach) for task in tasks]
    panels = [panel for output in zip(*each, strict=True) for panel in output]
    return figure_tables(panels, path, x, dates=columns.is_date(x), log=columns.log)


def task_panels(
    predictor: "Predictor", task: TaskRows, columns: "Columns", reach: tuple[float, float] | None = None
) -> list[TablePanel]:
    """The panels of one task, one for each output."""
    x, y = (number_columns(part, None, name).numpy() for part, name in ((task.x, "x"), (task.y, "y")))
    x_other, y_other = x[:0], y[:0]
    if task.others is not None and len(task.others[0]):
        x_other, y_other = (number_columns(part, None, "others").numpy() for part in task.others)
    units = predictor.units
    ends = (*units.x_low[:1], *units.x_high[:1]) if reach is None else reach
    seen = np.concatenate([[end for end in ends if math.isfinite(end)], x[:, 0], x_other[:, 0]])
    log = columns.x[0] in columns.log
    low, high = float(seen.min()), float(seen.max())
    if low == high:  # a range of no width has no axis
        low, high = (low / 2, high * 2) if log else (low - 1, high + 1)
    grid = (np.geomspace if log else np.linspace)(low, high, GRID)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FarNote)  # it is seen
        prediction = predictor.adapt(x, y).predict(np.concatenate([grid[:, None], np.tile(x[:1, 1:], (GRID, 1))], 1))
    bounds = [part.numpy() for part in (prediction.mean, prediction.quantile(0.05), prediction.quantile(0.95))]
    names = columns.y if len(columns.y) == y.shape[1] else [f"y{place + 1}" for place in range(y.shape[1])]
    points = [(x[:, 0], y[:, k], x_other[:, 0], y_other[:, k]) for k in range(y.shape[1])]
    curves = [[part[:, k] for part in bounds] for k in range(y.shape[1])]
    return [
        TablePanel(task.title, grid, mean, lower, upper, *own, name)
        for (mean, lower, upper), own, name in zip(curves, points, names, strict=True)
    ]
