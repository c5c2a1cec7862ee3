"""Functions through a few points: figure 2 of the paper, and the picture of one prediction."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from nvdp.errors import InputError
from nvdp.plots.style import BLACK, BLUE, FONT_SIZE, WIDTH, new_figure, save_figure, tidy

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

TRUTH, CONTEXT, FUNCTIONS, MEAN = "true function", "context points", "sampled functions", "mean"
BAND_STDS = 2
ROW_HEIGHT, LEGEND_HEIGHT, LEGEND_ENTRY = 1.35, 0.55, 1.3  # inches; an entry's width


@dataclass(frozen=True)
class FunctionPanel:
    """What one model believes after a context: sampled functions, their mean, perhaps a deviation."""

    title: str  # names the column
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
            if values.shape != shape:
                raise InputError(f"panel '{self.title}': {name} has shape {values.shape}; expected {shape}")
            if not np.isfinite(values).all():
                raise InputError(f"panel '{self.title}': {name} holds a value that is not finite")


def figure_functions(panels: Sequence[FunctionPanel], path: Path | str) -> list[Path]:
    """A grid of panels, rows by `row` and columns by `title`, each in order of first appearance."""
    if not panels:
        raise InputError("a figure of functions needs at least one panel; got 0")
    rows = list(dict.fromkeys(panel.row for panel in panels))
    titles = list(dict.fromkeys(panel.title for panel in panels))
    figure = new_figure(WIDTH, ROW_HEIGHT * len(rows) + LEGEND_HEIGHT)
    grid = figure.subplots(len(rows), len(titles), sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)  # until a panel claims it
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
    """One panel: band, sampled functions, mean where there is a band, truth and context, back to front."""
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
    """A light band, and the mean as a thick line."""
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
    """Sampled functions as thin blue lines, the truth dashed, context points as dots."""
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
    """One legend below the figure, each label once."""
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


def figure_prediction(
    x: Float[np.ndarray, " point"],
    mean: Float[np.ndarray, " point"],
    lower: Float[np.ndarray, " point"],
    upper: Float[np.ndarray, " point"],
    x_context: Float[np.ndarray, " context"],
    y_context: Float[np.ndarray, " context"],
    path: Path | str,
    *,
    functions: Float[np.ndarray, "sample point"] | None = None,
    truth: Float[np.ndarray, " point"] | None = None,
    level: float = 0.9,
    x_label: str = "x",
    y_label: str = "y",
    title: str | None = None,
) -> list[Path]:
    """One task's prediction at x, in any order: its mean, and the interval that holds `level` of its mass.

    `lower` and `upper` are quantiles at (1 ± level) / 2; functions and truth are given at the same x.
    """
    order = np.argsort(x)
    functions = np.empty((0, len(x))) if functions is None else functions
    figure = new_figure(5.2, 3.0)
    axes = figure.subplots()
    draw_band(axes, x[order], lower[order], upper[order], f"{level:.0%} interval", mean[order])
    draw_functions_and_points(
        axes, x[order], functions[:, order], x_context, y_context, None if truth is None else truth[order]
    )
    tidy(axes)
    axes.margins(x=0.02)
    axes.set_xlabel(x_label, fontsize=FONT_SIZE)
    axes.set_ylabel(y_label, fontsize=FONT_SIZE)
    if title is not None:
        axes.set_title(title, fontsize=FONT_SIZE + 1)
    shared_legend(figure)
    return save_figure(figure, path)
