"""Tables of few-shot classification as Markdown, made from result files alone; empty where there are no results."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from nvdp.errors import InputError, unknown_name
from nvdp.evaluation.metrics import NORMAL_95
from nvdp.experiments.entries import read_entries
from nvdp.experiments.report_tables import Estimate, Results, markdown_table, minus, number_or_nothing
from nvdp.experiments.results import Result, paper_numbers
from nvdp.experiments.schemas import STEP_ROWS, VIEW_ROWS
from nvdp.experiments.table3 import (
    METHODS,
    PAPER_RATES,
    SETTINGS,
    Setting,
    extractors_of,
    feature_steps,
    method_of,
    rows_of,
)
from nvdp.training.presets import preset_config

REGIMES = {
    "end-to-end": "end to end",
    "fine-tuned": "from a pretrained extractor",
    "features": "features of pretrained extractors",
}
COUNTS = {1: "one", 2: "two", 3: "three", 4: "four"}
GPU_CORES = 100  # how many cores of this machine a GPU is assumed to be worth


def extractors_in_words(results: Results, task: str) -> str:
    """The extractors of a task in table 3, e.g. for a sentence "miniImageNet has …".

    >>> from pathlib import Path
    >>> extractors_in_words(Results(Path("results")), "miniimagenet")
    'three extractors `conv5-wide` with 128 principal components each'
    """
    recipes = extractors_of(task, results.budget).values()
    parts: list[str] = []
    for (kind, components), many in Counter((each.extractor, each.components) for each in recipes).items():
        what = "" if parts else " extractors" if many > 1 else " extractor"
        text = f"{COUNTS.get(many, str(many))}{what} `{kind}`"
        parts.append(text + (f" with {components} principal components" + " each" * (many > 1) if components else ""))
    return " and ".join(parts)


def fewshot_tables(results: Results) -> str:
    """Table 3: a subsection for every column and regime that has results."""
    blocks = []
    for regime, title in REGIMES.items():
        for setting in SETTINGS:
            rows = results.table3(setting, regime)
            if not rows:
                continue
            blocks += [f"### {setting.paper}, {title}", _fewshot_table(rows, setting)]
            if missing := [f"`{name}`" for name in rows_of(regime) if name not in rows]:
                blocks.append(f"Not run: {', '.join(missing)}.")
            if any("extractor" in row["evaluation"] for row in rows.values()):
                raise InputError(f"rows of {setting.paper} are of an earlier version; run them all again")
            used = {
                (
                    row["config"]["episodes"].get("features"),
                    row["config"].get("start"),
                    _features_used(row["evaluation"]),
                )
                for row in rows.values()
            }
            if len(used) > 1:
                raise InputError(f"rows of {setting.paper} come from different extractors; run them all again")
            blocks += [text for *_, text in used if text]
    return "\n\n".join(blocks)


def fewshot_steps_table(results: Results) -> str:
    """Accuracy on validation classes by column and row of table 3 and number of steps; ✓: as in the table."""
    path = results.folder / "bench" / "fewshot-steps.json"
    tasks = {setting.short: setting.task for setting in SETTINGS}
    rows = read_entries(path, STEP_ROWS, "rows")["rows"] if path.exists() else []
    for row in rows:
        if row["column"] not in tasks:
            raise unknown_name(f"column of {path}", row["column"], tasks)
        of_row = [each for each in rows if (each["column"], each["row"]) == (row["column"], row["row"])]
        best = max(of_row, key=lambda each: (each["accuracy"], -each["ece"]))
        if best["steps"] != (steps := feature_steps(tasks[row["column"]], row["row"])):
            named = f"{row['row']} in {row['column']}"
            raise InputError(f"{path}: {named} is best after {best['steps']} steps; table 3 has {steps}")
        used = ",".join(extractors_of(tasks[row["column"]], results.budget))
        if row["features"] != used:
            raise InputError(
                f"{path}: {row['row']} has features of {row['features']}; table 3 has {used}: run it again"
            )
    lines = [
        [
            row["column"],
            f"`{row['row']}`",
            f"{row['steps']:,}" + " ✓" * (row["steps"] == feature_steps(tasks[row["column"]], row["row"])),
            f"{_accuracy(row)} ({row['episodes']})",
            f"{row['ece']:.3f}",
            f"{row['seconds']:.0f}",
        ]
        for row in rows
    ]
    return markdown_table(["column", "row", "steps", "accuracy (episodes)", "ECE", "seconds"], lines) if lines else ""


def views_table(results: Results) -> str:
    """Nearest class means by what features are, from ``benchmarks/views.py``."""
    path = results.folder / "bench" / "views.json"
    lines = []
    for row in read_entries(path, VIEW_ROWS, "rows")["rows"] if path.exists() else []:
        for features, scores in row["scores"].items():
            cells = [f"{100 * each['accuracy']:.2f} ± {100 * each['stderr']:.2f}" for each in scores.values()]
            lines.append([f"{row['task']}, {row['way']}-way", features, *cells])
    return markdown_table(["task", "features", "1 shot", "5 shots"], lines) if lines else ""


def _features_used(scores: dict[str, Any]) -> str:
    """What pretraining took, and what the features are worth by themselves; nothing for rows end to end."""
    extractors = scores.get("extractors") or []
    if not extractors:
        return ""
    text = f"Pretraining, extractor by extractor: {'; '.join(map(_took, extractors))}."
    if scores.get("nearest_mean_accuracy") is None:
        return text
    return (
        f"{text} The nearest class mean of the features, 5-way 1-shot on validation classes, has an accuracy of "
        f"{100 * scores['nearest_mean_accuracy']:.1f}."
    )


def _took(extractor: dict[str, Any]) -> str:
    steps, seconds = extractor["steps"], extractor["seconds"]
    return f"{steps:,} more steps" + ("" if seconds is None else f" and {seconds:,.0f} more seconds")


def _fewshot_table(rows: dict[str, Result], setting: Setting) -> str:
    paper = paper_numbers()["table3"]
    transductive = any("transductive" in row for row in rows.values())
    unsampled = any("without_sampling" in row["evaluation"] for row in rows.values())
    head = ["method", "paper", *(["without sampling", "ECE"] if unsampled else [])]
    head += ["10 samples", "their NLL", "their ECE", *(["transductive"] if transductive else []), "steps", "seconds"]
    lines = []
    for name, row in rows.items():
        each = row["evaluation"]
        printed = paper[METHODS[method_of(name)]].get(setting.paper)
        cells = [f"`{name}`", printed_accuracy(printed), *(_without_sampling(each) if unsampled else [])]
        cells += [_accuracy(each), f"{each['nll']:.3f}", f"{each['ece']:.3f}"]
        if transductive:
            cells.append(_accuracy(row["transductive"]) if "transductive" in row else "")
        lines.append([*cells, f"{row['steps']:,}", f"{row['seconds']:.0f}"])
    if untrained := [row["evaluation"]["nearest_mean"] for row in rows.values() if "nearest_mean" in row["evaluation"]]:
        lines.append(["nearest class mean", "", _accuracy(untrained[0]), *[""] * (len(head) - 5), "0", "0"])
    return markdown_table(head, lines)


def per_cent(result: Result) -> Estimate:
    """Accuracy and its standard error, in per cent."""
    each = result["evaluation"]
    return 100 * each["accuracy"], 100 * each["interval95"] / NORMAL_95


def per_cent_without_sampling(result: Result) -> Estimate:
    """The same of predictions without sampling."""
    return per_cent({"evaluation": result["evaluation"]["without_sampling"]})


Measure = Callable[[Result], Estimate]


def best_other(rows: dict[str, Result], measure: Measure = per_cent) -> str | None:
    """The best method of a column that is not NVDP, of equal ones the first; None if there is no other."""
    others = [name for name in rows if name not in ("nvdp", PAPER_RATES)]
    return max(others, key=lambda name: measure(rows[name])[0], default=None)


def nvdp_ahead(rows: dict[str, Result], best: str, measure: Measure = per_cent) -> Estimate:
    """NVDP's accuracy minus that of another method."""
    return minus(measure(rows["nvdp"]), measure(rows[best]))


def _without_sampling(evaluation: dict[str, Any]) -> tuple[str, str]:
    """Accuracy and ECE without sampling; results of an earlier version do not have them."""
    each = evaluation.get("without_sampling")
    return ("–", "–") if each is None else (_accuracy(each), f"{each['ece']:.3f}")


def _accuracy(evaluation: dict[str, Any]) -> str:
    return f"{100 * evaluation['accuracy']:.2f} ± {100 * evaluation['interval95']:.2f}"


def printed_value(value: Any) -> float:
    """The paper's number without its interval; −∞ if it prints none.

    >>> printed_value([54.06, 1.86]), printed_value(98.1), printed_value(None)
    (54.06, 98.1, -inf)
    """
    return -math.inf if value is None else float(value[0] if isinstance(value, list) else value)


def printed_accuracy(value: Any) -> str:
    """The paper's number, with its interval if it prints one.

    >>> printed_accuracy([54.06, 1.86]), printed_accuracy(98.1), printed_accuracy(None)
    ('54.06 ± 1.86', '98.1', '–')
    """
    if value is None:
        return "–"
    return f"{value[0]} ± {value[1]}" if isinstance(value, list) else str(value)


def cost_table(results: Results) -> str:
    """What runs of the paper's length would cost: images through the extractor at the best speed of the runs here."""
    speeds: dict[str, float] = {}
    for result in results.runs("table3").values():
        task, config = result["config"]["task"], result["config"]
        if config["episodes"]["regime"] == "end-to-end" and result["seconds"] > 0:
            speed = result["steps"] * images_per_step(config) / result["seconds"]
            speeds[task] = max(speed, speeds.get(task, 0.0))
    lines = []
    for setting in (setting for setting in SETTINGS if setting.task in speeds):
        config = asdict(preset_config(setting.task, "protonet", "paper", way=setting.way, shot=setting.shot))
        images, speed = config["steps"] * images_per_step(config), speeds[setting.task]
        cells = [setting.paper, f"{images / 1e6:,.0f}", f"{speed:,.0f}", f"{images / speed / 86_400:.1f}"]
        lines.append([*cells, f"{images / speed / 3_600 / GPU_CORES:.1f}"])
    head = ["one run", "million images", "images a second here", "days of a core", f"hours of {GPU_CORES} cores"]
    return markdown_table(head, lines) if lines else ""


def images_per_step(config: dict[str, Any]) -> int:
    """Support and query images of all episodes of a step.

    >>> images_per_step({"tasks_per_step": 8, "episodes": {"way": 5, "shot": 1, "queries": 15}})
    640
    """
    episodes = config["episodes"]
    return int(config["tasks_per_step"] * episodes["way"] * (episodes["shot"] + episodes["queries"]))


def choices_table(results: Results) -> str:
    """NVDP's classifier, one change at a time: scores on validation classes."""
    lines = []
    for name, row in results.runs("fewshot-choices").items():
        each = row["evaluation"]
        cells = [f"`{name}`", *_without_sampling(each), _accuracy(each), f"{each['nll']:.3f}", f"{each['ece']:.3f}"]
        lines.append([*cells, number_or_nothing(each["mean_rate"], ".3f"), f"{row['seconds']:.0f}"])
    head = ["run", "without sampling", "ECE", "10 samples", "their NLL", "their ECE", "rate", "seconds"]
    return markdown_table(head, lines) if lines else ""
