"""The results page: ``results_template.md`` with tables, figures and sentences computed from result files alone.

In the template ``{{name}}`` stands for a part of the page. If a part is empty, because there are no results for it, its
section or subsection is left out. A part ``{{name?}}`` may be empty: only its own paragraph is left out then.
"""

import re
from collections.abc import Callable, Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from nvdp.errors import InputError
from nvdp.experiments.claims import (
    alive_in_words,
    alive_table,
    claims_table,
    gates_in_words,
    gates_table,
    limits_in_words,
    rivals_table,
    tnp_table,
)
from nvdp.experiments.hours import drawn_points, hours_in_words, paper_length_in_words
from nvdp.experiments.report_fewshot import (
    choices_table,
    cost_table,
    extractors_in_words,
    fewshot_steps_table,
    fewshot_tables,
    per_cent,
    views_table,
)
from nvdp.experiments.report_tables import (
    Results,
    active_table,
    best_first,
    explained_pixels_table,
    pixel_table,
    score_table,
    seeds_table,
)
from nvdp.experiments.report_words import (
    active_in_words,
    against_paper,
    compared,
    fewshot_in_words,
    highest,
    pixels_in_words,
    seeds_in_words,
    variational_prior,
)
from nvdp.experiments.results import Result, paper_numbers
from nvdp.experiments.studies import LONGER, SHIPPED
from nvdp.experiments.summary import summary

MARK = "<!-- Written by nvdp report, which replaces this page: do not edit it. -->\n"  # the first line of its pages
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
PLACEHOLDER = re.compile(r"\{\{([\w.+-]+)(\??)\}\}")
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
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise InputError(f"the file needs the markers {BEGIN} and {END} once each, in this order")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{block}\n{END}{rest.split(END)[1]}"


def marked(page: str) -> str:
    """A page with the line that tells `nvdp report` that the page is its own."""
    return MARK + page


def text_of_own_page(path: Path) -> str | None:
    """What a page that `nvdp report` has written says; None if there is no page or it is somebody else's."""
    if not path.is_file():
        return None
    text = path.read_text(errors="replace")
    return text if text.startswith(MARK) else None


def figures_of(*pages: str) -> set[str]:
    """The figures that pages show, by name without suffix.

    >>> figures_of("![Hours](figures/hours.png)", "no figure")
    {'hours'}
    """
    return {name for page in pages for name in re.findall(r"\(figures/([\w-]+)\.png\)", page)}


def readme_block(folder: Path, budget: str = "cpu") -> str:
    """The results that the README shows."""
    block = summary(Results(folder, budget))
    if not block:
        raise InputError(f"{folder} holds no results of the {budget} budget for the README")
    return block


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


def _long() -> dict[str, Part]:
    paper = paper_numbers()["table1"]["learned variance"]
    return _scores(
        "long",
        lambda results: best_first(results.runs("long")),
        lambda rows: [highest(rows), against_paper(rows, paper)],
        paper,
    )


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
    "summary": summary,
    "table3.omniglot": lambda results: extractors_in_words(results, "omniglot-fewshot"),
    "table3.miniimagenet": lambda results: extractors_in_words(results, "miniimagenet"),
    "table3.tasks": lambda results: _tasks(results.runs("table3").values()),
    "table3.cost": cost_table,
    "views": views_table,
    "fewshot-steps": fewshot_steps_table,
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
    "fewshot-choices.words": lambda results: compared(results.runs("fewshot-choices"), SHIPPED, per_cent),
    **_study("attentive", lambda rows: [highest(rows)]),
    **_study("learning", lambda rows: [highest(rows)]),
    **_study("figure9", lambda rows: [compared(rows, "nvdp")]),
    **_study("recipes", lambda rows: [compared({n: r for n, r in rows.items() if n not in LONGER}, SHIPPED)]),
    **_study("quarter", _quarter),
    **_long(),
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
