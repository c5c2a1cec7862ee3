"""One figure for each suite, from its result alone."""

from collections.abc import Callable, Sequence
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import numpy as np

from nvdp.bench.adapt import NAMES
from nvdp.bench.real import summary
from nvdp.experiments.results import paper_numbers
from nvdp.plots.curves import REFERENCE_LINES
from nvdp.plots.style import (
    BLACK,
    BLUE,
    FONT_SIZE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY_BLUE,
    VERMILLION,
    WIDTH,
    new_figure,
    save_figure,
    series_style,
    tidy,
)

STEP_BARS = {
    "floor": ("floor", SKY_BLUE),
    "ours": ("ours", BLUE),
    "autograd": ("autograd", ORANGE),
    "autograd_default_malloc": ("autograd, default malloc", VERMILLION),
}
METHODS = {
    "ours": ("ours", BLUE),
    "mean_weights": ("mean_weights", BLACK),
    "conv": ("conv", PURPLE),
    "general": ("general", GREY),
    "finetune": ("finetune", SKY_BLUE),
    "sklearn": ("sklearn", ORANGE),
    "gpytorch": ("gpytorch", VERMILLION),
    "oracle": ("oracle", GREEN),
}
TABLE_BARS = {
    "ours": ("ours", BLUE),
    "mixed": ("mixed", ORANGE),
    "mean_curve": ("mean curve of all tasks", GREEN),
}
MARKERS = "os^Dv"  # one for each other machine
ELSEWHERE: dict[str, Any] = {"linewidth": 0.5, "markersize": 4, "markerfacecolor": "none"}
Curve = tuple[np.ndarray, np.ndarray]
NOTHING: Curve = (np.empty(0), np.empty(0))
LOWEST_LL = -5.0  # with few points a Gaussian process may be far below
LEGEND_LETTERS = 60  # that fit into one line
AXES = {"tasks": "tasks", "points": "points a task", "width": "width", "layers": "layers"}
HALVES = {"adapt": ("adapt", BLUE), "predict": ("predict", SKY_BLUE)}
REAL_LINES = {
    "ours": ("nvdp general", BLUE, "o-"),
    "sklearn": ("scikit-learn GP", ORANGE, "s--"),
    "gpytorch": ("GPyTorch GP", VERMILLION, "^-."),
    "forest": ("random forest", GREEN, "v:"),
}
LINES = {
    "ours": ("ours", BLUE, "o-"),
    "autograd": ("autograd", VERMILLION, "s--"),
    "predict": ("predict", GREEN, "^:"),
}


def draw(result: dict[str, Any], path: Path, others: Sequence[dict[str, Any]] = ()) -> list[Path]:
    """Draw a suite's result; a PDF goes beside a PNG.

    Args:
        result: Of a suite.
        path: The file to write.
        others: Of the suite quality alone: its results on other machines, each drawn with a marker of its own.

    Returns:
        The files written.
    """
    return DRAWN[result["suite"]](result["rows"], path, *([others] if others else []))


def _step(rows: list[dict[str, Any]], path: Path) -> list[Path]:
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    figure = new_figure(WIDTH, 2.8)
    for axes, shape in zip(figure.subplots(1, len(shapes), squeeze=False)[0], shapes, strict=True):
        group = [row for row in rows if row["shape"] == shape]
        _bars(axes, group, STEP_BARS, "ms")
        axes.set_xticks(
            range(len(group)), [row["model"] for row in group], rotation=40, ha="right", rotation_mode="anchor"
        )
        axes.set_title(f"{shape}\n{group[0]['tasks']} tasks of {group[0]['points']} points", fontsize=FONT_SIZE)
        axes.set_ylabel("ms a training step", fontsize=FONT_SIZE)
        tidy(axes)
    return _finish(figure, path)


def _adapt(rows: list[dict[str, Any]], path: Path) -> list[Path]:
    from matplotlib.ticker import StrMethodFormatter

    figure = new_figure(WIDTH, 3.0)
    times, quality = figure.subplots(1, 2)
    timed = {name: METHODS[name] for name in NAMES}
    _bars(times, rows, timed, "ms")
    times.set_yscale("log")
    times.set_ylabel("ms to adapt and predict", fontsize=FONT_SIZE)
    single = [row for row in rows if row["tasks"] == 1]
    _bars(quality, single, METHODS, "ll")
    quality.axhline(0, color="black", linewidth=0.6)
    quality.set_yscale("symlog", linthresh=1)
    quality.set_yticks([-5, -2, -1, 0, 0.5, 1, 2])
    quality.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    quality.set_ylabel("log-likelihood per target\n(logarithmic beyond ±1)", fontsize=FONT_SIZE)
    for axes, group in ((times, rows), (quality, single)):
        labels = [f"S = {row['context']}" + (f"\n{row['tasks']} tasks" if row["tasks"] > 1 else "") for row in group]
        axes.set_xticks(range(len(group)), labels)
        tidy(axes)
    return _finish(figure, path)


def _fewshot(rows: list[dict[str, Any]], path: Path) -> list[Path]:
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    columns = min(3, len(shapes))
    lines = -(-len(shapes) // columns)
    figure = new_figure(WIDTH, 0.4 + 2.2 * lines)
    grid = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, shape in zip(grid, shapes, strict=False):
        group = [row for row in rows if row["shape"] == shape]
        _bars(axes, group, HALVES, "ms")
        _plain_log_scale(axes)
        axes.set_xticks(
            range(len(group)), [row["model"] for row in group], rotation=40, ha="right", rotation_mode="anchor"
        )
        axes.set_title(shape, fontsize=FONT_SIZE + 1)
        axes.set_ylabel("ms a task", fontsize=FONT_SIZE)
        tidy(axes)
    for axes in grid[len(shapes) :]:
        axes.remove()
    return _finish(figure, path)


def _growth(rows: list[dict[str, Any]], path: Path) -> list[Path]:
    figure = new_figure(WIDTH, 3.8)
    grid = figure.subplots(2, len(AXES), sharex="col", sharey="row")
    for column, (axis, label) in enumerate(AXES.items()):
        group = sorted((row for row in rows if row["axis"] in (axis, "base")), key=lambda row: row[axis])
        for name, (title, colour, line) in LINES.items():
            style = {"color": colour, "linewidth": 1.2, "markersize": 3.5}
            done = [row for row in group if row.get(f"{name}_ms") is not None]
            x = [row[axis] for row in done]
            grid[0, column].plot(x, [row[f"{name}_ms"] for row in done], line, label=title, **style)
            grid[1, column].plot(x, [row[f"{name}_peak_bytes"] / 2**20 for row in done], line, **style)
        skipped = [row for row in group if row["autograd_skipped"]]
        if skipped:
            sizes = [row["autograd_estimated_bytes"] / 2**20 for row in skipped]
            hollow = {"color": VERMILLION, "linestyle": "none", "marker": "s", "fillstyle": "none", "markersize": 3.5}
            grid[1, column].plot([row[axis] for row in skipped], sizes, label="autograd, estimated", **hollow)
        for axes in grid[:, column]:
            axes.set_xscale("log")
            _plain_log_scale(axes)
            tidy(axes)
        ticks = [row[axis] for row in group]
        grid[1, column].set_xticks(ticks, ticks, rotation=60 if len(ticks) > 4 else 0)
        grid[1, column].set_xlabel(label, fontsize=FONT_SIZE)
    grid[0, 0].set_ylabel("ms", fontsize=FONT_SIZE)
    grid[1, 0].set_ylabel("MiB at the peak", fontsize=FONT_SIZE)
    return _finish(figure, path)


def _quality(rows: list[dict[str, Any]], path: Path, elsewhere: Sequence[dict[str, Any]] = ()) -> list[Path]:
    curves = _curves(rows)
    others = [(_curves(result["rows"]), marker) for result, marker in zip(elsewhere, cycle(MARKERS), strict=False)]
    levels = {
        "exact GP that knows the kernel": rows[0]["ceiling_LL"],
        **({"attainable: exact GP that infers it": rows[0]["attainable_LL"]} if "attainable_LL" in rows[0] else {}),
        "the paper's NVDP, E log, 500,000 steps": paper_numbers()["table1"]["learned variance"]["nvdp"]["LL"][0],
    }
    figure = new_figure(WIDTH, 3.6)
    whole, top = figure.subplots(1, 2)  # the second one without the models that are far below the others
    for axes in (whole, top):
        for index, name in enumerate(dict.fromkeys(chain(curves, *(each for each, _ in others)))):
            colour, line = series_style(index)
            own = curves.get(name, NOTHING)
            axes.plot(*own, color=colour, linestyle=line, linewidth=1.2, label=name)
            for points, marker in [(each[name], marker) for each, marker in others if name in each]:
                marked = {"marker": marker, "markevery": slice(-len(points[0]), None)}
                axes.plot(*_joined(own, points), color=colour, linestyle=line, **marked, **ELSEWHERE)
        for (_, marker), result in zip(others, elsewhere, strict=True):
            processor = result["machine"].get("processor", "processor not recorded")
            axes.plot([], [], color=BLACK, marker=marker, label=processor, **ELSEWHERE)
        for line, (name, level) in zip(REFERENCE_LINES, levels.items(), strict=False):
            axes.axhline(level, color=BLACK, linewidth=0.8, linestyle=line, label=name, zorder=1)
        axes.set_xscale("log")
        every = chain(rows, *(result["rows"] for result in elsewhere))
        ticks = sorted({round(row["budget"], 1) for row in every})
        axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("seconds of one thread's training", fontsize=FONT_SIZE)
        tidy(axes)
    whole.set_ylabel("log-likelihood per point", fontsize=FONT_SIZE)
    best = max(ll[-1] for _, ll in curves.values())
    top.set_ylim(best - 0.3, max(levels.values()) + 0.02)
    handles, labels = whole.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=FONT_SIZE, frameon=False, handlelength=3.2)
    return save_figure(figure, path)


def _curves(rows: list[dict[str, Any]]) -> dict[str, Curve]:
    """Seconds and LL by model and recipe."""
    curves: dict[str, Curve] = {}
    for model, recipe in dict.fromkeys((row["model"], row["recipe"]) for row in rows):
        group = [row for row in rows if (row["model"], row["recipe"]) == (model, recipe)]
        seconds, ll = (np.array([row[key] for row in group]) for key in ("seconds", "LL"))
        curves[model if recipe != "paper" else f"{model}, {recipe} recipe"] = (seconds, ll)
    return curves


def _joined(own: Curve, other: Curve) -> Curve:
    """Another machine's points after the last shorter training here: its line shows which model a marker is of."""
    shorter = own[0] < 0.9 * other[0][0]  # the same budget gives slightly different seconds
    seconds, ll = (np.concatenate([here[shorter][-1:], there]) for here, there in zip(own, other, strict=True))
    return seconds, ll


def _tables(rows: list[dict[str, Any]], path: Path) -> list[Path]:
    """What each method gains or loses against the hierarchical GP, and its coverage, at four context points."""
    figure = new_figure(WIDTH, 4.4)
    for panels, kind in zip(figure.subplots(2, 2), ("random", "first"), strict=True):
        shown = [row for row in rows if row["kind"] == kind and row["context"] == 4]
        for row in shown:
            for name in TABLE_BARS:
                row[f"{name}_gain"] = row[f"{name}_LL"] - row["hierarchical_LL"]
        for axes, metric in zip(panels, ("gain", "coverage90"), strict=True):
            _bars(axes, shown, TABLE_BARS, metric)
            axes.set_xticks(range(len(shown)), [row["table"].replace("_", "\n") for row in shown])
            axes.tick_params(axis="x", labelrotation=45)
            tidy(axes)
        panels[0].set_ylim(-0.5, 0.5)
        panels[0].axhline(0.0, color=BLACK, linewidth=0.6)
        panels[0].set_ylabel(f"LL − hierarchical GP\n4 {kind} points\n(cut at ±0.5)", fontsize=FONT_SIZE)
        panels[1].axhline(0.9, color=BLACK, linewidth=0.6, linestyle="--")
        panels[1].set_ylabel("coverage of 90 %", fontsize=FONT_SIZE)
    return _finish(figure, path)


def _plain_log_scale(axes: Any) -> None:
    """1, 3, 10, 30 … as plain numbers."""
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.minorticks_off()


def _bars(axes: Any, rows: list[dict[str, Any]], variants: dict[str, tuple[str, str]], unit: str) -> None:
    """Bars of all variants for every row, with quartiles where there are any; a variant not measured has none."""
    width = 0.84 / len(variants)
    for index, (name, (label, colour)) in enumerate(variants.items()):
        measured = [(place, row) for place, row in enumerate(rows) if row.get(f"{name}_{unit}") is not None]
        if not measured:
            continue
        places = [place + (index - (len(variants) - 1) / 2) * width for place, _ in measured]
        heights = np.array([row[f"{name}_{unit}"] for _, row in measured])
        axes.bar(places, heights, width * 0.92, color=colour, label=label)
        key = f"{name}_quartiles_{unit}"
        if all(key in row for _, row in measured):
            low, high = np.array([row[key] for _, row in measured]).T
            errors = np.maximum([heights - low, high - heights], 0)
            axes.errorbar(places, heights, errors, fmt="none", ecolor="black", elinewidth=0.7)


def _real(rows: list[dict[str, Any]], path: Path) -> list[Path]:
    """Means over the sets of the last part that was measured, by size of context."""
    table = summary(rows)
    part = table[-1]["part"]
    panels = {
        "median_LL": f"median log-likelihood, cut at {LOWEST_LL:g}",
        "RMSE": "RMSE",
        "coverage90": "inside 90 %",
        "coverage50": "inside 50 %",
    }
    figure = new_figure(WIDTH, 2.6)
    for axes, (metric, label) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for name, (title, colour, style) in REAL_LINES.items():
            chosen = [row for row in table if row["part"] == part and row["method"] == name]
            axes.plot(
                [row["context"] for row in chosen], [row[metric] for row in chosen], style, color=colour, label=title
            )
        if metric.startswith("coverage"):
            axes.axhline(float(metric.removeprefix("coverage")) / 100, color=BLACK, linewidth=0.6, linestyle=":")
        elif metric == "median_LL":
            axes.set_ylim(LOWEST_LL, max(row[metric] for row in table if row["part"] == part) + 0.5)
        axes.set_xscale("log")
        axes.set_xlabel("context points", fontsize=FONT_SIZE)
        axes.set_title(label, fontsize=FONT_SIZE)
        tidy(axes)
    return _finish(figure, path)


def _finish(figure: Any, path: Path) -> list[Path]:
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    columns = 5 if sum(map(len, handles)) < LEGEND_LETTERS else 3
    place = {"loc": "outside lower center", "ncols": columns, "fontsize": FONT_SIZE, "frameon": False}
    figure.legend(handles.values(), handles, **place)
    return save_figure(figure, path)


DRAWN: dict[str, Callable[..., list[Path]]] = {
    "step": _step,
    "adapt": _adapt,
    "fewshot": _fewshot,
    "growth": _growth,
    "quality": _quality,
    "tables": _tables,
    "real": _real,
}
