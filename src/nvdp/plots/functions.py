"""Functions that a model samples for a task: figure 2 of the paper, and figure 9 with its dropout rates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from nvdp.errors import InputError
from nvdp.plots.style import (
    BLACK,
    BLUE,
    FONT_SIZE,
    SERIES_COLOURS,
    SERIES_LINES,
    WIDTH,
    new_figure,
    save_figure,
    tidy,
)

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

TRUTH, CONTEXT, FUNCTIONS, MEAN = "true function", "context points", "sampled functions", "mean"
BAND_STDS = 2
ROW_HEIGHT, LEGEND_HEIGHT, LEGEND_ENTRY = 1.35, 0.55, 1.3  # inches; an entry's width
RATES_ROW_HEIGHT = 1.45  # inches
MIN_COLUMNS = 8  # of a matrix: enough width for the layer's title


@dataclass(frozen=True)
class FunctionPanel:
    """Posterior of one model for one task: sampled functions, mean, and standard deviation if there is one."""

    title: str  # of its column
    row: str
    x: Float[np.ndarray, " point"]
    truth: Float[np.ndarray, " point"]
    x_context: Float[np.ndarray, " context"]
    y_context: Float[np.ndarray, " context"]
    functions: Float[np.ndarray, "sample point"]
    mean: Float[np.ndarray, " point"]
    std: Float[np.ndarray, " point"] | None = None

    def __post_init__(self) -> None:
        points, context = self.x.shape, self.x_context.shape
        expected = {
            "truth": points,
            "y_context": context,
            "functions": (len(self.functions), *points),
            "mean": points,
            "std": points,
        }
        for name, shape in {"x": points, "x_context": context, **expected}.items():
            values = getattr(self, name)
            if values is None:
                continue
            if np.shape(values) != shape:
                raise InputError(f"panel '{self.title}': {name} has shape {np.shape(values)}; expected {shape}")
            if not np.isfinite(values).all():
                raise InputError(f"panel '{self.title}': {name} holds a value that is not finite")


def figure_functions(panels: Sequence[FunctionPanel], path: Path | str) -> list[Path]:
    """Draw panels in a grid.

    Args:
        panels: Panels of the same `row` share a row, those of the same `title` a column.
        path: The file to write.

    Returns:
        The files written.
    """
    if not panels:
        raise InputError("a figure of functions needs at least one panel; got 0")
    rows = list(dict.fromkeys(panel.row for panel in panels))
    titles = list(dict.fromkeys(panel.title for panel in panels))
    figure = new_figure(WIDTH, ROW_HEIGHT * len(rows) + LEGEND_HEIGHT)
    grid = figure.subplots(len(rows), len(titles), sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)  # a place without a panel stays empty
    for panel in panels:
        axes = grid[rows.index(panel.row), titles.index(panel.title)]
        axes.set_visible(True)
        draw_panel(axes, panel)
        tidy(axes)
        axes.margins(x=0.02)
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title, fontsize=FONT_SIZE)
    for axes in grid[-1]:
        axes.set_xlabel("x", fontsize=FONT_SIZE)
    for axes, row in zip(grid[:, 0], rows, strict=True):
        axes.set_ylabel(f"{row}\ny" if row else "y", fontsize=FONT_SIZE)
    shared_legend(figure)
    return save_figure(figure, path)


def draw_panel(axes: "matplotlib.axes.Axes", panel: FunctionPanel) -> None:
    """Draw one panel; the mean is drawn only with its band."""
    if panel.std is not None:
        low, high = panel.mean - BAND_STDS * panel.std, panel.mean + BAND_STDS * panel.std
        draw_band(axes, panel.x, low, high, f"mean ± {BAND_STDS} std", panel.mean)
    draw_functions_and_points(axes, panel.x, panel.functions, panel.x_context, panel.y_context, panel.truth)


def draw_band(
    axes: "matplotlib.axes.Axes",
    x: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    label: str,
    mean: np.ndarray,
) -> None:
    """Draw a light band, and the mean as a thick line."""
    axes.fill_between(x, low, high, color=BLUE, alpha=0.18, linewidth=0, label=label, zorder=1)
    axes.plot(x, mean, color=BLUE, linewidth=1.5, zorder=3, label=MEAN)


def draw_functions_and_points(
    axes: "matplotlib.axes.Axes",
    x: np.ndarray,
    functions: np.ndarray,
    x_context: np.ndarray,
    y_context: np.ndarray,
    truth: np.ndarray | None,
) -> None:
    """Draw sampled functions as thin blue lines, the true function dashed, context points as dots."""
    for index, function in enumerate(functions):
        axes.plot(x, function, color=BLUE, linewidth=0.6, alpha=0.7, zorder=2, label=None if index else FUNCTIONS)
    if truth is not None:
        axes.plot(x, truth, color=BLACK, linewidth=1.1, linestyle=(0, (3, 1.5)), zorder=4, label=TRUTH)
    axes.plot(
        x_context,
        y_context,
        linestyle="none",
        marker="o",
        markersize=4,
        color=BLACK,
        markeredgecolor="white",
        markeredgewidth=0.5,
        zorder=5,
        label=CONTEXT,
    )


def shared_legend(figure: "matplotlib.figure.Figure") -> None:
    """Add one legend below the figure, with each label once."""
    handles = {}
    for axes in figure.axes:
        handles.update({label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)})
    order = [TRUTH, CONTEXT, FUNCTIONS, MEAN]
    labels = [label for label in order if label in handles] + [label for label in handles if label not in order]
    most = max(1, int(figure.get_figwidth() // LEGEND_ENTRY))
    lines = math.ceil(len(labels) / most)
    figure.legend(
        [handles[label] for label in labels],
        labels,
        loc="outside lower center",
        ncols=math.ceil(len(labels) / lines),
        fontsize=FONT_SIZE,
        frameon=False,
    )


@dataclass(frozen=True)
class RatesPanel:
    """Functions of one task, and the keep probabilities 1 − P of every layer's K × D weights."""

    function: FunctionPanel
    keep: tuple[Float[np.ndarray, "_ _"], ...]

    def __post_init__(self) -> None:
        for index, matrix in enumerate(self.keep, start=1):
            if not ((matrix >= 0) & (matrix <= 1)).all():
                raise InputError(f"layer {index} of '{self.function.title}' holds a keep probability outside [0, 1]")


@dataclass(frozen=True)
class SharedWeightsPanel:
    """What all tasks share: example curves of the data set by kind, and the weights θ of every layer."""

    x: Float[np.ndarray, " point"]
    curves: dict[str, Float[np.ndarray, "_ _"]]  # each (curve, point)
    theta: tuple[Float[np.ndarray, "_ _"], ...]


def figure_rates(
    panels: Sequence[RatesPanel], path: Path | str, shared: SharedWeightsPanel | None = None
) -> list[Path]:
    """Draw dropout rates beside the functions they give.

    Args:
        panels: One row for each task: functions left, layers right.
        path: The file to write.
        shared: A last row with the shared weights.

    Returns:
        The files written.
    """
    if not panels:
        raise InputError("a figure of dropout rates needs at least one panel; got 0")
    shapes = [matrix.shape for matrix in panels[0].keep]
    rows = len(panels) + (shared is not None)
    figure = new_figure(WIDTH, RATES_ROW_HEIGHT * rows + 0.4)
    # A layer's column is as wide as its matrix, or as its title needs; the last column is for colour bars.
    widths = [19.0, *(max(columns, MIN_COLUMNS) for _, columns in shapes), 0.7]
    cells = figure.add_gridspec(rows, len(widths), width_ratios=widths)
    left: Any = None
    for index, panel in enumerate(panels):
        left = figure.add_subplot(cells[index, 0], sharex=left, sharey=left)
        draw_panel(left, panel.function)
        _label_functions(left, panel.function.title, index == rows - 1)
        layers = [figure.add_subplot(cells[index, column]) for column in range(1, len(shapes) + 1)]
        for number, (axes, matrix) in enumerate(zip(layers, panel.keep, strict=True), start=1):
            image = _draw_matrix(axes, matrix, "gray_r", 0.0, 1.0)
            if index == 0:
                axes.set_title(f"layer {number} ({matrix.shape[0]}×{matrix.shape[1]})", fontsize=FONT_SIZE)
    _colour_bar(image, figure.add_subplot(cells[: len(panels), -1]), "keep probability 1 − P")
    if shared is not None:
        left = figure.add_subplot(cells[-1, 0], sharex=left, sharey=left)
        layers = [figure.add_subplot(cells[-1, column]) for column in range(1, len(shapes) + 1)]
        image = _draw_shared(left, layers, shared)
        _colour_bar(image, figure.add_subplot(cells[-1, -1]), "θ (dot: negative)")
    shared_legend(figure)
    return save_figure(figure, path)


def _draw_shared(left: Any, layers: Sequence[Any], shared: SharedWeightsPanel) -> Any:
    styles = zip(SERIES_COLOURS[1:], SERIES_LINES[1:], strict=True)  # solid blue is for sampled functions
    for (name, curves), (colour, line) in zip(shared.curves.items(), styles, strict=False):
        for index, curve in enumerate(curves):
            label = None if index else name
            left.plot(shared.x, curve, color=colour, linestyle=line, linewidth=0.8, label=label)
    _label_functions(left, "all tasks", True)
    limit = max(float(np.abs(theta).max()) for theta in shared.theta)
    image: Any = None
    for axes, theta in zip(layers, shared.theta, strict=True):
        image = _draw_matrix(axes, theta, "PuOr", -limit, limit)
        row, column = np.nonzero(theta < 0)  # a dot marks negative values for readers who cannot tell the colours
        axes.plot(column, row, linestyle="none", marker=".", markersize=1.6, color=BLACK)
    return image


def _label_functions(axes: "matplotlib.axes.Axes", title: str, last: bool) -> None:
    axes.set_ylabel(f"{title}\ny", fontsize=FONT_SIZE)
    axes.margins(x=0.02)
    tidy(axes)
    axes.tick_params(labelbottom=last)
    if last:
        axes.set_xlabel("x", fontsize=FONT_SIZE)


def _draw_matrix(axes: "matplotlib.axes.Axes", matrix: np.ndarray, colours: str, low: float, high: float) -> Any:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_linewidth(0.5)
    return axes.imshow(matrix, cmap=colours, vmin=low, vmax=high, interpolation="nearest")


def _colour_bar(image: Any, place: Any, label: str) -> None:
    bar = place.figure.colorbar(image, cax=place)
    bar.set_label(label, fontsize=FONT_SIZE)
    place.tick_params(labelsize=FONT_SIZE, length=2.5, width=0.6)
    bar.outline.set_linewidth(0.5)
