"""Curves: scores while training, active learning (figure 3 of the paper), and regret of optimisation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from nvdp.errors import InputError
from nvdp.plots.style import BLACK, FONT_SIZE, SERIES_LINES, WIDTH, new_figure, save_figure, series_style, tidy

if TYPE_CHECKING:
    import matplotlib.axes

REFERENCE_LINES = ((0, (1, 1.5)), (0, (7, 2, 1, 2)), (0, (4, 4)))
ACTIVE_BAND, REGRET_BAND = 2, 1  # standard errors
ACTIVE_FLOOR, ACTIVE_MARGIN = -2.5, 0.15  # of the axis, in nats: curves that begin below the floor enter from there
HOURS_FLOOR = -0.4  # runs of less are below the axis
REGRET_FLOOR = 0.2  # a band's lowest value as a share of the mean: a logarithmic axis has no zero
Curve = tuple[np.ndarray, np.ndarray]


def figure_training(
    curves: Mapping[str, Curve],
    path: Path | str,
    reference_lines: Mapping[str, float] | None = None,
    x_label: str = "training step",
    y_label: str = "log-likelihood per point",
) -> list[Path]:
    """Draw learning curves of several runs.

    Args:
        curves: (x, y) by name. A curve has a gap where y is not finite.
        path: The file to write.
        reference_lines: Horizontal lines by name, such as the score of an oracle.
        x_label: Label of the x axis.
        y_label: Label of the y axis.

    Returns:
        The files written.
    """
    if not curves:
        raise InputError("a figure of learning curves needs at least one curve; got 0")
    figure = new_figure(5.2, 3.0)
    axes = figure.subplots()
    for index, (name, (x, y)) in enumerate(curves.items()):
        if len(x) != len(y):
            raise InputError(f"curve '{name}' has {len(x)} values of x and {len(y)} of y")
        colour, line = series_style(index)
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


def figure_hours(
    points: Mapping[str, Curve], path: Path | str, reference_lines: Mapping[str, float] | None = None
) -> list[Path]:
    """Draw scores of runs against their hours, with the best score up to each hour as a line.

    Args:
        points: (hours, score) by model, in order of the hours.
        path: The file to write.
        reference_lines: Horizontal lines by name.

    Returns:
        The files written.
    """
    figure = new_figure(WIDTH, 3.6)
    axes = figure.subplots()
    for index, (name, (hours, scores)) in enumerate(points.items()):
        colour, line = series_style(index)
        axes.scatter(hours, scores, s=9, color=colour, linewidths=0)
        best = np.maximum.accumulate(scores)
        width = 1.8 if name.startswith("nvdp") else 0.9
        axes.step(hours, best, where="post", color=colour, linestyle=line, linewidth=width, label=name)
    for index, (name, level) in enumerate((reference_lines or {}).items()):
        axes.axhline(level, color=BLACK, linewidth=1.0, linestyle=REFERENCE_LINES[index], label=name, zorder=1)
    axes.set_xscale("log")
    axes.set_ylim(bottom=HOURS_FLOOR)
    axes.set_xlabel("hours of one core", fontsize=FONT_SIZE)
    axes.set_ylabel("log-likelihood per point, E log", fontsize=FONT_SIZE)
    tidy(axes)
    figure.legend(loc="outside right upper", fontsize=FONT_SIZE, frameon=False, handlelength=3.2)
    return save_figure(figure, path)


@dataclass(frozen=True)
class ActiveCurve:
    """A score against the number of context points: mean over tasks and its standard error."""

    sizes: Int[np.ndarray, " size"]
    mean: Float[np.ndarray, " size"]
    stderr: Float[np.ndarray, " size"]


def figure_active(
    by_learner: Mapping[str, ActiveCurve], by_choice: Mapping[str, ActiveCurve], exact: str, path: Path | str
) -> list[Path]:
    """Draw active learning in two panels.

    Args:
        by_learner: Curves of the left panel: each learner with the points that it chose itself.
        by_choice: Curves of the right panel: the same learners with points chosen in different ways.
        exact: Curves whose names begin with this text are black.
        path: The file to write.

    Returns:
        The files written.
    """
    if not by_learner or not by_choice:
        raise InputError("a figure of active learning needs curves in both panels; one has none")
    figure = new_figure(WIDTH, 3.4)
    panels = figure.subplots(1, 2, sharey=True)
    titles = ("points chosen by each model itself", "points chosen in different ways")
    for axes, curves, title in zip(panels, (by_learner, by_choice), titles, strict=True):
        _draw_active(axes, curves, exact)
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
    panels[0].set_ylim(max(means.min() - ACTIVE_MARGIN, ACTIVE_FLOOR), means.max() + ACTIVE_MARGIN)
    panels[0].set_ylabel("log-likelihood per point", fontsize=FONT_SIZE)
    return save_figure(figure, path)


def _draw_active(axes: "matplotlib.axes.Axes", curves: Mapping[str, ActiveCurve], exact: str) -> None:
    indices, black_lines = count(), iter(("-", SERIES_LINES[3], *SERIES_LINES))
    for name, curve in curves.items():
        if name.startswith(exact):
            colour, line = BLACK, next(black_lines)
        else:
            colour, line = series_style(next(indices))
        axes.plot(curve.sizes, curve.mean, color=colour, linestyle=line, linewidth=1.3, label=name)
        low, high = curve.mean - ACTIVE_BAND * curve.stderr, curve.mean + ACTIVE_BAND * curve.stderr
        axes.fill_between(curve.sizes, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set_xticks([1, 5, 10, 15, 20])
    axes.margins(x=0.02)


@dataclass(frozen=True)
class RegretPanel:
    """Regrets on one family of functions, by optimiser: one row for each function.

    The first `shared` evaluations are the same for all optimisers.
    """

    title: str
    regrets: Mapping[str, Float[np.ndarray, "function evaluation"]]
    shared: int = 1


def figure_regret(panels: Sequence[RegretPanel], path: Path | str) -> list[Path]:
    """Draw regret, the best value found minus the minimum, against the number of evaluations.

    Args:
        panels: One for each family of functions. Curves are means over its functions; bands are standard errors.
        path: The file to write.

    Returns:
        The files written.
    """
    if not panels:
        raise InputError("a figure of regret needs at least one panel; got 0")
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = new_figure(3.5 * len(panels), 2.9)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for index, (name, values) in enumerate(panel.regrets.items()):
            evaluations = np.arange(panel.shared, values.shape[1] + 1)
            mean, stderr = (part[panel.shared - 1 :] for part in (values.mean(0), values.std(0) / np.sqrt(len(values))))
            colour, line = series_style(index)
            axes.plot(evaluations, mean, color=colour, linestyle=line, linewidth=1.3, label=name)
            low = np.maximum(mean - REGRET_BAND * stderr, REGRET_FLOOR * mean)
            high = mean + REGRET_BAND * stderr
            axes.fill_between(evaluations, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_title(panel.title, fontsize=FONT_SIZE + 1)
        axes.set_xlabel("evaluations", fontsize=FONT_SIZE)
        axes.set_ylabel("regret", fontsize=FONT_SIZE)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.02)
        tidy(axes)
        axes.legend(fontsize=FONT_SIZE, frameon=False, handlelength=3.2)
    return save_figure(figure, path)
