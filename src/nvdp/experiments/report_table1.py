"""The section of table 1: scores of one seed, and what further seeds say of the paper's order."""

import statistics
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from nvdp.experiments.report_parts import METRICS, score_table, steps_of
from nvdp.experiments.results import Result
from nvdp.experiments.table1 import NAMES, SEEDED, SEEDS, shipped_name

WHY_TEXT = """**Why these differ from the paper's.** With learned variance all are below it: they had a fiftieth of
its steps. NVDP, whose rates have to tell tasks apart before they are of use, gains on the CNP with more steps (*NVDP
and CNP, longer* below); the paper's order, NVDP first, is not reached at this length. The variational prior raises
LL and PLL of both models it can be given to with mean parameters and learned variance, not their RLL. With fixed
variance all are within a few hundredths of the paper's and of the ceiling."""
SHIPPED_TEXT = """The same six as `nvdp train --preset cpu` gives them, {steps} steps, the same tasks: networks see
waves of x and have fewer layers, points are weighted by how sure they are, encoders and rate networks are residual,
NAdam takes the steps ([method](method.md#settings-for-faster-learning)); NVDP's r is normalised over tasks as well."""
SEEDS_TEXT = """The models as shipped under {seeds} seeds, which change initial weights and training tasks, not
the tasks that are scored. Mean over seeds of the score with mean parameters; ± is the standard error of that mean. A
difference is of two models under the same seed."""
ORDER_TEXT = """**What becomes of the paper's order.** At this length the variational prior helps the NP by far, and the
NP+CNP not at all. NVDP has the highest mean LL and PLL, ahead of the CNP by about three standard errors and of NP+CNP
by less than one: NVDP first, as the paper has it, is where the means point and cannot be told from a tie with NP+CNP.
In RLL, the log-likelihood of the context itself, it is level with the CNP and below NP+CNP. With seven times the steps
NVDP comes within a few hundredths of what the paper prints for 500,000 (*A quarter of the time* below)."""


def table1_section(results: dict[str, Result], paper: dict[str, Any], budget: str = "cpu") -> str:
    """Both variances, the models as shipped, then the seeds."""
    if not results:
        return ""
    lines = ["## Table 1: 1D regression on GP functions"]
    paper_rows = {name: result for name, result in results.items() if "-shipped" not in name}
    if paper_rows:
        steps = steps_of(paper_rows)
        lines += ["", f"The paper's models: {steps} steps of 16 tasks, one seed; the paper's took 500,000."]
    for variance in ("learned", "fixed"):
        rows = {name: results.get(f"{name}-{variance}") for name in NAMES}
        present = {name: row for name, row in rows.items() if row is not None}
        if not present:
            continue
        tasks = next(iter(present.values()))["evaluation"]["tasks"]
        lines += ["", f"### {variance.capitalize()} variance, {tasks} validation tasks", ""]
        lines += list(score_table(present, paper[f"{variance} variance"]))
    if paper_rows and budget == "cpu":
        lines += ["", WHY_TEXT]
    seeds = list(_seeds(results))
    return "\n".join(
        [*lines, *_shipped(results, paper), *seeds, *(["", ORDER_TEXT] if seeds and budget == "cpu" else [])]
    )


def _shipped(results: dict[str, Result], paper: dict[str, Any]) -> Iterator[str]:
    rows = {name: row for name in NAMES if (row := results.get(shipped_name(name))) is not None}
    if rows:
        yield "\n### Learned variance, as shipped\n"
        yield SHIPPED_TEXT.format(steps=steps_of(rows)) + "\n"
        yield from score_table(rows, paper["learned variance"])


def _seeds(results: dict[str, Result]) -> Iterator[str]:
    seeds = (0, *SEEDS)
    scores = {}
    for name in SEEDED:
        runs = [results.get(shipped_name(name, seed)) for seed in seeds]
        known = [run for run in runs if run is not None]
        if len(known) == len(seeds):
            scores[name] = {
                metric: [run["evaluation"]["scores"][metric]["mean_parameters"] for run in known] for metric in METRICS
            }
    if not scores:
        return
    yield f"\n### {len(seeds)} seeds\n"
    yield SEEDS_TEXT.format(seeds=len(seeds)) + "\n"
    yield "| model | " + " | ".join(METRICS) + " |"
    yield "|" + " --- |" * (1 + len(METRICS))
    for name, row in scores.items():
        yield f"| `{name}` | " + " | ".join(mean_and_error(row[metric]) for metric in METRICS) + " |"
    for first, second in combinations(scores, 2):
        pairs = {m: zip(scores[second][m], scores[first][m], strict=True) for m in METRICS}
        cells = [mean_and_error([b - a for a, b in pairs[metric]]) for metric in METRICS]
        yield f"| `{first}` − `{second}` | " + " | ".join(cells) + " |"


def mean_and_error(values: list[float]) -> str:
    """The mean and its standard error.

    >>> mean_and_error([1.0, 2.0, 3.0])
    '2.000 ± 0.577'
    """
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values) / len(values) ** 0.5:.3f}"
