"""Sentences of the results page, computed from result files: what is higher, by how much, and whether that is clear."""

import math
import statistics
from collections.abc import Callable, Iterable
from typing import Any

from nvdp.evaluation.metrics import FLAVOURS
from nvdp.experiments.claims import CLEAR
from nvdp.experiments.figure3 import EXACT
from nvdp.experiments.report_fewshot import REGIMES, best_other, nvdp_ahead, per_cent, per_cent_without_sampling
from nvdp.experiments.report_tables import (
    FLAVOUR_TITLES,
    METRICS,
    Estimate,
    Results,
    best_first,
    minus,
    paired_difference,
    standard_error,
)
from nvdp.experiments.results import Result
from nvdp.experiments.table3 import SETTINGS

COLLAPSED_RATE = 0.02  # a mean rate below this is near the floor of 0.01


def in_words(difference: float, stderr: float, digits: int = 3) -> str:
    """A difference with its standard error, and whether it is clear.

    >>> in_words(0.058, 0.019)
    '+0.058 ± 0.019 (3.1 standard errors)'
    >>> in_words(-0.004, 0.012)
    '-0.004 ± 0.012 (no clear difference)'
    """
    ratio = abs(difference) / stderr if stderr else math.inf
    verdict = f"{ratio:.1f} standard errors" if ratio >= CLEAR else "no clear difference"
    return f"{difference:+.{digits}f} ± {stderr:.{digits}f} ({verdict})"


def _ll(result: Result) -> Estimate:
    scores = result["evaluation"]["scores"]["LL"]
    return scores[FLAVOURS[0]], scores["stderr"]


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def highest(rows: dict[str, Result]) -> str:
    """Which model has the highest LL in each variant, and how far the next one is behind with mean parameters."""
    if len(rows) < 2:
        return ""
    scores = {name: row["evaluation"]["scores"]["LL"] for name, row in rows.items()}
    leaders = [max(scores, key=lambda name: scores[name][flavour]) for flavour in FLAVOURS]
    if len(set(leaders)) == 1:
        text = f"Highest LL in every variant: `{leaders[0]}`."
    else:
        titles = zip(FLAVOUR_TITLES.values(), leaders, strict=True)
        text = f"Highest LL: {', '.join(f'*{title}* `{name}`' for title, name in titles)}."
    first, second, *_ = best_first(rows)
    gap = in_words(*minus(_ll(rows[first]), _ll(rows[second])))
    return f"{text} *LL mean* of `{first}` minus that of the next, `{second}`: {gap}."


def against_paper(rows: dict[str, Result], paper: dict[str, Any]) -> str:
    """The range of differences from the paper's LL."""
    gaps = {name: _ll(row)[0] - paper[name]["LL"][0] for name, row in rows.items() if name in paper}
    if not gaps:
        return ""
    low, high = min(gaps, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
    return f"*LL mean* minus the paper's LL: from {gaps[low]:+.2f} (`{low}`) to {gaps[high]:+.2f} (`{high}`)."


def variational_prior(rows: dict[str, Result]) -> str:
    """What the variational prior changes in LL, for the models that can have it."""
    pairs = [name for name in ("np", "np+cnp") if name in rows and f"{name}+vp" in rows]
    changes = [f"`{name}` {in_words(*minus(_ll(rows[f'{name}+vp']), _ll(rows[name])))}" for name in pairs]
    return f"Change of *LL mean* by the variational prior: {'; '.join(changes)}." if changes else ""


def compared(rows: dict[str, Result], base: str, measure: Callable[[Result], Estimate] = _ll) -> str:
    """Which rows are clearly above or below a base row, and which have rates near their floor."""
    if base not in rows or len(rows) < 2:
        return ""
    gaps = {name: minus(measure(row), measure(rows[base])) for name, row in rows.items() if name != base}
    above = [name for name, (gap, stderr) in gaps.items() if gap >= CLEAR * stderr]
    below = [name for name, (gap, stderr) in gaps.items() if gap <= -CLEAR * stderr]
    between = [name for name in gaps if name not in above and name not in below]
    rates = {name: row["evaluation"]["mean_rate"] for name, row in rows.items()}
    collapsed = [name for name, rate in rates.items() if rate is not None and rate < COLLAPSED_RATE]
    score = "accuracy" if measure is per_cent else "*LL mean*"
    return (
        f"Compared with `{base}` in {score}, clearly higher: {_named(above)}; no clear difference: {_named(between)}; "
        f"clearly lower: {_named(below)}. Mean rate below {COLLAPSED_RATE}: {_named(collapsed)}."
    )


def seeds_in_words(results: Results) -> str:
    """For each metric: the model with the highest mean over seeds, and its paired difference from every other."""
    scores = results.seeds()
    if len(scores) < 2:
        return ""
    sentences = []
    for metric in METRICS:
        best = max(scores, key=lambda name: statistics.mean(scores[name][metric]))
        gaps = {name: paired_difference(scores[best][metric], scores[name][metric]) for name in scores if name != best}
        told = [f"`{name}` {in_words(statistics.mean(gap), standard_error(gap))}" for name, gap in gaps.items()]
        sentences.append(f"Highest mean {metric}: `{best}`; its lead over {', over '.join(told)}.")
    return "\n".join(sentences)


def active_in_words(results: Results) -> str:
    """For which models their own choice of points is better or worse than random points."""
    data = results.figure("figure3")
    if data is None:
        return ""
    gains = {name: (gain["mean"][-1], gain["stderr"][-1]) for name, gain in data["gain"].items()}
    better = [name for name, (gain, stderr) in gains.items() if gain >= CLEAR * stderr]
    worse = [name for name, (gain, stderr) in gains.items() if gain <= -CLEAR * stderr]

    def listed(names: list[str]) -> str:
        return ", ".join(name if name == EXACT else f"`{name.lower()}`" for name in names) or "none"

    points = data["gain"][EXACT]["sizes"][-1]
    return (
        f"After {points} points, own choice is clearly better than random points for: {listed(better)}; "
        f"clearly worse for: {listed(worse)}."
    )


def pixels_in_words(data: dict[str, Any] | None) -> str:
    """PSNR with chosen pixels minus PSNR with random ones, for the last model of each set."""
    if data is None:
        return ""
    sentences = []
    for name, models in data["pixels"].items():
        model, choices = list(models.items())[-1]
        chosen, random = choices["uncertainty"], choices["random"]
        gains = [f"{chosen[size]['PSNR'] - random[size]['PSNR']:+.1f} ({size})" for size in ("30", "100", "half")]
        spreads = f"{random['10']['spread']:.3f} from 10 pixels, {random['all']['spread']:.3f} from all"
        sentences.append(
            f"- {name}, `{model.lower()}`: PSNR of chosen minus random pixels {', '.join(gains)}; spread {spreads}."
        )
    return "\n".join(sentences)


def fewshot_in_words(results: Results) -> str:
    """NVDP's accuracy minus that of the best other method in each column: without sampling, and with 10 samples."""
    lines = []
    for regime, title in REGIMES.items():
        for setting in SETTINGS:
            rows = results.table3(setting, regime)
            if "nvdp" not in rows or best_other(rows) is None:
                continue
            ways = {"with 10 samples": per_cent}
            if all("without_sampling" in row["evaluation"] for row in rows.values()):
                ways = {"without sampling": per_cent_without_sampling} | ways
            gaps = []
            for way, measure in ways.items():
                best = best_other(rows, measure)
                assert best is not None
                gap = in_words(*nvdp_ahead(rows, best, measure), digits=2)
                gaps.append(f"`nvdp` minus `{best}`, the best other method: {gap} {way}")
            lines.append(f"- {setting.paper}, {title}: {'; '.join(gaps)}.")
    return "\n".join(lines)
