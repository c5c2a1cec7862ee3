"""Regret of optimisation: the best value found less the minimum, against the number of evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from nvdp.errors import InputError
from nvdp.plots.style import FONT_SIZE, SERIES_COLOURS, SERIES_LINES, new_figure, save_figure, tidy

BAND_STDERRS = 1
LOWEST_SHARE = 0.2  # of a mean, to which a band reaches at most: there is no zero on a logarithmic axis


@dataclass(frozen=True)
class RegretPanel:
    """One family of functions: regrets of every way, a row for each function; the first evaluations are shared."""

    title: str
    regrets: Mapping[str, Float[np.ndarray, "function evaluation"]]
    shared: int = 1


def figure_regret(panels: Sequence[RegretPanel], path: Path | str) -> list[Path]:
    """A panel for each family, from the last shared evaluation on: mean over functions, with its standard error."""
    if not panels:
        raise InputError("a figure of regret needs at least one panel; got 0")
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = new_figure(3.5 * len(panels), 2.9)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for index, (name, values) in enumerate(panel.regrets.items()):
            count = np.arange(panel.shared, values.shape[1] + 1)
            mean, stderr = (part[panel.shared - 1 :] for part in (values.mean(0), values.std(0) / np.sqrt(len(values))))
            colour, line = SERIES_COLOURS[index], SERIES_LINES[index]
            axes.plot(count, mean, color=colour, linestyle=line, linewidth=1.3, label=name)
            low = np.maximum(mean - BAND_STDERRS * stderr, LOWEST_SHARE * mean)
            high = mean + BAND_STDERRS * stderr
            axes.fill_between(count, low, high, color=colour, alpha=0.15, linewidth=0)
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
