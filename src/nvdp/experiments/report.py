"""The results page: ``results_template.md`` with tables, figures and sentences computed from result files alone.

In the template ``{{name}}`` stands for a part of the page. If a part is empty, because there are no results for it, its
section or subsection is left out. A part ``{{name?}}`` may be empty: only its own paragraph is left out then.
"""

import math
import re
import statistics
from collections.abc import Callable, Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from nvdp.errors import InputError
from nvdp.evaluation.metrics import FLAVOURS
from nvdp.experiments.claims import (
    CLEAR,
    alive_in_words,
    alive_table,
    claims_table,
    gates_in_words,
    gates_table,
    limits_in_words,
    rivals_table,
    tnp_table,
)
from nvdp.experiments.figure3 import EXACT
from nvdp.experiments.hours import drawn_points, hours_in_words, paper_length_in_words
from nvdp.experiments.report_tables import (
    FLAVOUR_TITLES,
    METRICS,
    REGIMES,
    Results,
    active_table,
    best_first,
    choices_table,
    cost_table,
    explained_pixels_table,
    fewshot_steps,
    fewshot_steps_table,
    fewshot_tables,
    paired_difference,
    pixel_table,
    readme_table,
    score_table,
    seeds_table,
    standard_error,
    views_table,
)
from nvdp.experiments.results import Result, paper_numbers
from nvdp.experiments.studies import LONGER, SHIPPED
from nvdp.experiments.table3 import PAPER_RATES, SETTINGS

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
PLACEHOLDER = re.compile(r"\{\{([\w.+-]+)(\??)\}\}")
COLLAPSED_RATE = 0.02  # a mean rate below this is near the floor of 0.01
Estimate = tuple[float, float]  # a value and its standard error
Part = Callable[[Results], str]  # of the page; empty without results


def results_page(folder: Path, budget: str = "cpu") -> str:
    """The whole page.

    Args:
        folder: The folder of result files.
        budget: Whose results to show.

    Returns:
        Markdown; `InputError` if there are no results.
    """
    template = (files("nvdp.experiments") / "results_template.md").read_text()
    results = Results(folder, budget)
    page = filled(template, lambda name: PARTS[name](results))
    if "\n## " not in page:
        raise InputError(f"{folder} holds no results of the {budget} budget; make some with `nvdp reproduce`")
    return page


def filled(template: str, part: Callable[[str], str]) -> str:
    """A template with its placeholders replaced, and without the sections that have no results.

    Args:
        template: Markdown with placeholders.
        part: The text of a placeholder; "" if there is none.

    Returns:
        Markdown.
    """
    introduction, *sections = re.split(r"(?m)^(?=## )", template)
    kept = [_filled_block(introduction, part) or ""]
    for section in sections:
        head, *subsections = re.split(r"(?m)^(?=### )", section)
        block = _filled_block(head, part)
        inner = [text for each in subsections if (text := _filled_block(each, part)) is not None]
        own_results = PLACEHOLDER.search(head) is not None
        if block is not None and (inner or own_results):
            kept += [block, *inner]
    return "\n\n".join(kept) + "\n"


def _filled_block(block: str, part: Callable[[str], str]) -> str | None:
    paragraphs = []
    for paragraph in block.strip().split("\n\n"):
        for placeholder in PLACEHOLDER.finditer(paragraph):
            text = part(placeholder[1])
            if not text and not placeholder[2]:
                return None
            paragraph = paragraph.replace(placeholder[0], text)
        paragraphs += [paragraph.strip()] if paragraph.strip() else []
    return "\n\n".join(paragraphs)


def with_block(text: str, block: str) -> str:
    """`text` with everything between the two result markers replaced by `block`.

    >>> with_block("a <!-- results:begin --> old <!-- results:end --> z", "new").splitlines()[1]
    'new'
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise InputError(f"the file needs the markers {BEGIN} and {END} once each")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{block}\n{END}{rest.split(END)[1]}"


def readme_block(folder: Path, budget: str = "cpu") -> str:
    """The table of the README."""
    return readme_table(Results(folder, budget))


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


def minus(first: Estimate, second: Estimate) -> Estimate:
    """The difference of two estimates, its error as of independent ones.

    >>> minus((1.0, 0.3), (0.5, 0.4))
    (0.5, 0.5)
    """
    return first[0] - second[0], math.hypot(first[1], second[1])


def _ll(result: Result) -> Estimate:
    scores = result["evaluation"]["scores"]["LL"]
    return scores[FLAVOURS[0]], scores["stderr"]


def _per_cent(result: Result) -> Estimate:
    each = result["evaluation"]
    return 100 * each["accuracy"], 100 * each["interval95"] / 1.96


def _per_cent_without_sampling(result: Result) -> Estimate:
    return _per_cent({"evaluation": result["evaluation"]["without_sampling"]})


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
    score = "accuracy" if measure is _per_cent else "*LL mean*"
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
            rows = {name: row for name, row in results.table3(setting, regime).items() if name != PAPER_RATES}
            if "nvdp" not in rows or len(rows) < 2:
                continue
            gaps = [_nvdp_ahead(rows, _per_cent) + " with 10 samples"]
            if all("without_sampling" in row["evaluation"] for row in rows.values()):
                gaps.insert(0, _nvdp_ahead(rows, _per_cent_without_sampling) + " without sampling")
            lines.append(f"- {setting.paper}, {title}: {'; '.join(gaps)}.")
    return "\n".join(lines)


def _nvdp_ahead(rows: dict[str, Result], measure: Callable[[Result], Estimate]) -> str:
    scores = {name: measure(row) for name, row in rows.items()}
    nvdp = scores.pop("nvdp")
    best = max(scores, key=lambda name: scores[name][0])
    return f"`nvdp` minus `{best}`, the best other method: {in_words(*minus(nvdp, scores[best]), digits=2)}"


def _steps(rows: Iterable[Result]) -> str:
    return ", ".join(f"{steps:,}" for steps in sorted({row["steps"] for row in rows}))


def _tasks(rows: Iterable[Result]) -> str:
    return ", ".join(f"{tasks:,}" for tasks in sorted({row["evaluation"]["tasks"] for row in rows}))


def _scores(
    name: str,
    rows: Callable[[Results], dict[str, Result]],
    words: Callable[[dict[str, Result]], list[str]],
    paper: dict[str, Any] | None = None,
) -> dict[str, Part]:
    """The parts of a table of scores: the table, its steps, its number of tasks, and sentences about it."""
    return {
        name: lambda results: score_table(rows(results), paper),
        f"{name}.steps": lambda results: _steps(rows(results).values()),
        f"{name}.tasks": lambda results: _tasks(rows(results).values()),
        f"{name}.words": lambda results: "\n".join(filter(None, words(rows(results)))),
    }


def _table1(kind: str) -> dict[str, Part]:
    paper = paper_numbers()["table1"]["fixed variance" if kind == "fixed" else "learned variance"]
    return _scores(
        f"table1.{kind}",
        lambda results: results.table1(kind),
        lambda rows: [highest(rows), against_paper(rows, paper), variational_prior(rows)],
        paper,
    )


def _table2(title: str) -> dict[str, Part]:
    paper = paper_numbers()["table2"][title]
    return _scores(
        f"table2.{title.lower().replace(' ', '-')}",
        lambda results: results.table2(title),
        lambda rows: [highest(rows), against_paper(rows, paper), variational_prior(rows)],
        paper,
    )


def _study(name: str, words: Callable[[dict[str, Result]], list[str]]) -> dict[str, Part]:
    return _scores(name, lambda results: best_first(results.runs(name)), words)


def _quarter(rows: dict[str, Result]) -> list[str]:
    paper = paper_numbers()["table1"]["learned variance"]["nvdp"]
    return [compared(rows, "paper-recipe"), against_paper(rows, dict.fromkeys(rows, paper))]


def _image(name: str, data: str) -> dict[str, Part]:
    """The target of an image, if the file of its data exists."""
    target = f"(figures/{name}.png)"
    return {f"image.{name}": lambda results: target if (results.folder / data.format(results.budget)).exists() else ""}


def _from_figure(what: str, key: str) -> Part:
    return lambda results: "" if (data := results.figure(what)) is None else f"{data[key]:,}"


PARTS: dict[str, Part] = {
    "budget": lambda results: results.budget,
    **_table1("learned"),
    **_table1("fixed"),
    **_table1("shipped"),
    "table1.seeds": seeds_table,
    "table1.seeds.words": seeds_in_words,
    **_table2("MNIST"),
    **_table2("MNIST to Omniglot"),
    **_table2("CelebA"),
    "table3": fewshot_tables,
    "table3.words": fewshot_in_words,
    "table3.tasks": lambda results: _tasks(results.runs("table3").values()),
    "table3.cost": cost_table,
    "views": views_table,
    "fewshot-steps": fewshot_steps_table,
    "fewshot-steps.episodes": lambda results: next((str(row["episodes"]) for row in fewshot_steps(results)), ""),
    "figure3": active_table,
    "figure3.words": active_in_words,
    "figure3.tasks": _from_figure("figure3", "tasks"),
    "figure3.candidates": _from_figure("figure3", "candidates"),
    "figure3.steps": _from_figure("figure3", "steps"),
    "figure4": pixel_table,
    "pixels": explained_pixels_table,
    "figure4.words": lambda results: pixels_in_words(results.figure("figure4")),
    "pretrained.pixels": lambda results: pixels_in_words((results.figure("pretrained") or {}).get("digits")),
    "figure4.images": _from_figure("figure4", "images"),
    "fewshot-choices": choices_table,
    "fewshot-choices.steps": lambda results: _steps(results.runs("fewshot-choices").values()),
    "fewshot-choices.tasks": lambda results: _tasks(results.runs("fewshot-choices").values()),
    "fewshot-choices.words": lambda results: compared(results.runs("fewshot-choices"), SHIPPED, _per_cent),
    **_study("attentive", lambda rows: [highest(rows)]),
    **_study("learning", lambda rows: [highest(rows)]),
    **_study("figure9", lambda rows: [compared(rows, "nvdp")]),
    **_study("recipes", lambda rows: [compared({n: r for n, r in rows.items() if n not in LONGER}, SHIPPED)]),
    **_study("quarter", _quarter),
    **_study("ablations", lambda rows: [compared(rows, "kl-elbo-0.001")]),
    **_study("collapse", lambda rows: [compared(rows, SHIPPED)]),
    "gates": gates_table,
    "gates.words": gates_in_words,
    "limits": limits_in_words,
    "alive": alive_table,
    "alive.words": alive_in_words,
    "alive.tasks": lambda results: _tasks(results.runs("alive").values()),
    "rivals": rivals_table,
    "rivals.tasks": lambda results: _tasks(results.runs("rivals").values()),
    "tnp": tnp_table,
    "tnp.tasks": lambda results: _tasks(results.runs("tnp").values()),
    "claims": claims_table,
    **_image("figure2", "figure2/{}-figure.json"),
    **_image("figure3", "figure3/{}-figure.json"),
    **_image("figure4", "figure4/{}-figure.json"),
    **_image("figure9", "figure9/{}-figure.json"),
    **_image("figure9-decoder-x", "figure9/{}-figure.json"),
    **_image("pretrained-functions", "pretrained/{}-figure.json"),
    **_image("pretrained-active", "pretrained/{}-figure.json"),
    **_image("pretrained-digits", "pretrained/{}-figure.json"),
    **_image("bench-quality", "bench/quality.json"),
    "image.hours": lambda results: "(figures/hours.png)" if drawn_points(results) else "",
    "hours.words": hours_in_words,
    "hours.paper": paper_length_in_words,
}
