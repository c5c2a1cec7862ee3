"""Active learning: log-likelihood against the number of points shown, figure 3 of the paper."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from nvdp.errors import InputError
from nvdp.plots.style import BLACK, FONT_SIZE, SERIES_COLOURS, SERIES_LINES, WIDTH, new_figure, save_figure, tidy

if TYPE_CHECKING:
    import matplotlib.axes

LOWEST = -2.5  # of the axis: curves that begin below it enter from there
BAND_STDERRS = 2
MARGIN = 0.15  # of the axis, in its own units


@dataclass(frozen=True)
class ActiveCurve:
    """A score after so many points: its mean over tasks and the standard error of that."""

    sizes: Int[np.ndarray, " size"]
    mean: Float[np.ndarray, " size"]
    stderr: Float[np.ndarray, " size"]


def figure_active(
    by_learner: Mapping[str, ActiveCurve], by_choice: Mapping[str, ActiveCurve], exact: str, path: Path | str
) -> list[Path]:
    """Left, every learner after its own choices; right, who chooses. Names that begin with `exact` are black."""
    if not by_learner or not by_choice:
        raise InputError("a figure of active learning needs curves on both sides; got none on one")
    figure = new_figure(WIDTH, 3.4)
    panels = figure.subplots(1, 2, sharey=True)
    titles = ("each learner asks by its own doubt", "who chooses the points")
    for axes, curves, title in zip(panels, (by_learner, by_choice), titles, strict=True):
        _draw(axes, curves, exact)
        axes.set_title(title, fontsize=FONT_SIZE + 1)
        axes.set_xlabel("points shown", fontsize=FONT_SIZE)
        tidy(axes)
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.2),
            ncols=2,
            fontsize=FONT_SIZE - 1,
            frameon=False,
            handlelength=2.4,
            columnspacing=1.0,
        )
    means = np.concatenate([curve.mean for curve in (*by_learner.values(), *by_choice.values())])
    panels[0].set_ylim(max(means.min() - MARGIN, LOWEST), means.max() + MARGIN)
    panels[0].set_ylabel("log-likelihood per point", fontsize=FONT_SIZE)
    return save_figure(figure, path)


def _draw(axes: "matplotlib.axes.Axes", curves: Mapping[str, ActiveCurve], exact: str) -> None:
    places = iter(range(len(curves)))
    blacks = iter(("-", SERIES_LINES[3], *SERIES_LINES))
    for name, curve in curves.items():
        if name.startswith(exact):
            colour, line = BLACK, next(blacks)
        else:
            index = next(places)
            colour = SERIES_COLOURS[index % len(SERIES_COLOURS)]
            line = SERIES_LINES[(index + index // len(SERIES_COLOURS)) % len(SERIES_LINES)]  # no pair comes twice
        axes.plot(curve.sizes, curve.mean, color=colour, linestyle=line, linewidth=1.3, label=name)
        low, high = curve.mean - BAND_STDERRS * curve.stderr, curve.mean + BAND_STDERRS * curve.stderr
        axes.fill_between(curve.sizes, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set_xticks([1, 5, 10, 15, 20])
    axes.margins(x=0.02)
