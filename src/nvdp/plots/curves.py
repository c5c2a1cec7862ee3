"""Learning curves of several runs against one or more fixed levels, such as an oracle's."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from nvdp.errors import InputError
from nvdp.plots.style import BLACK, FONT_SIZE, SERIES_COLOURS, SERIES_LINES, new_figure, save_figure, tidy

REFERENCE_LINES = ((0, (1, 1.5)), (0, (7, 2, 1, 2)), (0, (4, 4)))
Curve = tuple[np.ndarray, np.ndarray]


def figure_training(
    curves: Mapping[str, Curve],
    path: Path | str,
    reference_lines: Mapping[str, float] | None = None,
    x_label: str = "training step",
    y_label: str = "log-likelihood per point",
) -> list[Path]:
    """Curves (x, y) by their name and horizontal lines by theirs; a curve has a gap where y is not finite."""
    if not curves:
        raise InputError("a figure of learning curves needs at least one curve; got 0")
    figure = new_figure(5.2, 3.0)
    axes = figure.subplots()
    for index, (name, (x, y)) in enumerate(curves.items()):
        if len(x) != len(y):
            raise InputError(f"curve '{name}' has {len(x)} values of x and {len(y)} of y")
        again, place = divmod(index, len(SERIES_COLOURS))  # colours come again with other lines
        colour, line = SERIES_COLOURS[place], SERIES_LINES[(place + again) % len(SERIES_LINES)]
        axes.plot(x, np.asarray(y), color=colour, linestyle=line, linewidth=1.3, label=name)
    for index, (name, level) in enumerate((reference_lines or {}).items()):
        line = REFERENCE_LINES[index % len(REFERENCE_LINES)]
        axes.axhline(level, color=BLACK, linewidth=1.0, linestyle=line, label=name, zorder=1)
    axes.set_xlabel(x_label, fontsize=FONT_SIZE)
    axes.set_ylabel(y_label, fontsize=FONT_SIZE)
    axes.margins(x=0.01)
    tidy(axes)
    figure.legend(loc="outside right upper", fontsize=FONT_SIZE, frameon=False, handlelength=3.2)
    return save_figure(figure, path)
