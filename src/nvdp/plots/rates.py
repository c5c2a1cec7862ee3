"""Dropout rates a context chooses, beside the functions they give: figure 9 of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from nvdp.errors import InputError
from nvdp.plots.functions import FunctionPanel, draw_panel, shared_legend
from nvdp.plots.style import BLACK, FONT_SIZE, SERIES_COLOURS, SERIES_LINES, WIDTH, new_figure, save_figure, tidy

if TYPE_CHECKING:
    import matplotlib.axes

ROW_HEIGHT = 1.45  # inches
LEAST_COLUMNS = 8  # of a matrix, in which a layer's name still fits


@dataclass(frozen=True)
class RatesPanel:
    """The functions of one task, and for every layer the probabilities 1−P of keeping its K × D weights."""

    function: FunctionPanel
    keep: tuple[Float[np.ndarray, "_ _"], ...]

    def __post_init__(self) -> None:
        for index, matrix in enumerate(self.keep, start=1):
            if not ((matrix >= 0) & (matrix <= 1)).all():
                raise InputError(f"layer {index} of '{self.function.title}' holds a keep probability outside [0, 1]")


@dataclass(frozen=True)
class SharedWeightsPanel:
    """What all tasks share: the data set's curves by their name, and the weights θ of every layer."""

    x: Float[np.ndarray, " point"]
    curves: dict[str, Float[np.ndarray, "_ _"]]  # each (curve, point)
    theta: tuple[Float[np.ndarray, "_ _"], ...]


def figure_rates(
    panels: Sequence[RatesPanel], path: Path | str, shared: SharedWeightsPanel | None = None
) -> list[Path]:
    """A row for each task, functions left and layers right, and a last row for what all tasks share."""
    if not panels:
        raise InputError("a figure of dropout rates needs at least one panel; got 0")
    shapes = [matrix.shape for matrix in panels[0].keep]
    rows = len(panels) + (shared is not None)
    figure = new_figure(WIDTH, ROW_HEIGHT * rows + 0.4)
    # A layer's column is as wide as its matrix, but holds its name; the last one is for colour bars.
    widths = [19.0, *(max(columns, LEAST_COLUMNS) for _, columns in shapes), 0.7]
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
        row, column = np.nonzero(theta < 0)  # a dot tells the sign where colours are lost
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
