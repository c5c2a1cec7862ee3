"""Tables of the results page as Markdown, each made from result files alone; empty where there are no results."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from nvdp.evaluation.metrics import FLAVOURS
from nvdp.experiments.entries import read_entries, reading
from nvdp.experiments.figure3 import EXACT, ORACLE, OWN, RANDOM
from nvdp.experiments.results import Result, figure_path, read_figure, read_results
from nvdp.experiments.schemas import PIXEL_ROWS
from nvdp.experiments.table1 import NAMES, SEEDED, SEEDS, shipped_name
from nvdp.experiments.table2 import LONG, LONGEST, READING_NAMES, SHIPPED
from nvdp.experiments.table3 import Setting, rows_of, run_name

METRICS = ("LL", "RLL", "PLL")
FLAVOUR_TITLES = dict(zip(FLAVOURS, ("mean", "E log", "log E"), strict=True))
IMAGE_SETTINGS = {  # the paper's title: set of training, set of scoring if it is another one
    "MNIST": ("mnist", None),
    "MNIST to Omniglot": ("mnist", "omniglot"),
    "CelebA": ("celeba", None),
}
Estimate = tuple[float, float]  # a value and its standard error
ACTIVE_SIZES = (1, 3, 5, 10, 20)  # context points shown in the table


@dataclass(frozen=True)
class Results:
    """A folder of result files, of which one budget is shown; each is read once."""

    folder: Path
    budget: str = "cpu"
    _runs: dict[str, dict[str, Result]] = field(default_factory=dict, repr=False, compare=False)
    _figures: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def runs(self, what: str) -> dict[str, Result]:
        """The results of an experiment by name of the run."""
        if what not in self._runs:
            self._runs[what] = read_results(self.folder, what, self.budget)
        return dict(self._runs[what])

    def figure(self, what: str) -> Any | None:
        """The data of an experiment's figure, or None."""
        if what not in self._figures:
            self._figures[what] = read_figure(self.folder, what, self.budget)
        return self._figures[what]

    def table1(self, kind: str) -> dict[str, Result]:
        """Rows of table 1 in the paper's order: kind is "learned", "fixed" or "shipped"."""
        return _rows(self.runs("table1"), {name: f"{name}-{kind}" for name in NAMES})

    def seeds(self) -> dict[str, dict[str, list[float]]]:
        """Scores with mean parameters by model and metric, a value for each seed; models with all seeds only."""
        results, scores = self.runs("table1"), {}
        for name in SEEDED:
            runs = [results.get(shipped_name(name, seed)) for seed in (0, *SEEDS)]
            known = [run["evaluation"]["scores"] for run in runs if run is not None]
            if len(known) == len(runs):
                scores[name] = {metric: [each[metric][FLAVOURS[0]] for each in known] for metric in METRICS}
        return scores

    def table2(self, title: str) -> dict[str, Result]:
        """Rows of table 2 for one of the paper's settings."""
        trained, on = IMAGE_SETTINGS[title]
        names = (*NAMES, *READING_NAMES, LONG, *SHIPPED, LONGEST)
        rows = _rows(self.runs("table2"), {name: f"{name}-{trained}" for name in names})
        if on is None:
            return rows
        return {name: row | {"evaluation": row["evaluations"][on]} for name, row in rows.items()}

    def table3(self, setting: Setting, regime: str) -> dict[str, Result]:
        """Rows of one column of table 3."""
        return _rows(self.runs("table3"), {name: run_name(name, setting, regime) for name in rows_of(regime)})


def _rows(results: dict[str, Result], names: dict[str, str]) -> dict[str, Result]:
    return {title: results[name] for title, name in names.items() if name in results}


def minus(first: Estimate, second: Estimate) -> Estimate:
    """The difference of two estimates, its error as of independent ones.

    >>> minus((1.0, 0.3), (0.5, 0.4))
    (0.5, 0.5)
    """
    return first[0] - second[0], math.hypot(first[1], second[1])


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table.

    >>> print(markdown_table(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def best_first(rows: dict[str, Result]) -> dict[str, Result]:
    """The rows, highest LL with mean parameters first."""
    return dict(sorted(rows.items(), key=lambda row: -row[1]["evaluation"]["scores"]["LL"][FLAVOURS[0]]))


def score_table(rows: dict[str, Result], paper: dict[str, Any] | None = None) -> str:
    """Scores in three variants with what else was measured, and the ceiling in the last row.

    Args:
        rows: Results by model.
        paper: The paper's scores by model, for a last column.

    Returns:
        The table; "" without rows.
    """
    if not rows:
        return ""
    evaluations = {name: row["evaluation"] for name, row in rows.items()}
    correlated = any(each.get("spread_follows_oracle") is not None for each in evaluations.values())
    head = ["model", *(f"{m} {title}" for m in METRICS for title in FLAVOUR_TITLES.values()), "± LL", "spread"]
    head += [*(["spread ~ exact std"] if correlated else []), "rate", "90 % covers", "steps", "seconds"]
    head += ["paper LL / RLL / PLL"] if paper else []
    lines = []
    for name, each in evaluations.items():
        cells = [f"`{name}`", *(f"{each['scores'][m][flavour]:.3f}" for m in METRICS for flavour in FLAVOURS)]
        cells += [f"{each['scores']['LL']['stderr']:.3f}", f"{each['spread']:.3f}"]
        if correlated:
            cells.append(number_or_nothing(each.get("spread_follows_oracle"), ".2f"))
        cells += [number_or_nothing(each["mean_rate"], ".3f"), f"{each['coverage']['90%']:.1%}"]
        cells += [f"{rows[name]['steps']:,}", f"{rows[name]['seconds']:.0f}"]
        if paper:
            printed = paper.get(name)
            cells.append(" / ".join(f"{printed[metric][0]:.2f}" for metric in METRICS) if printed else "")
        lines.append(cells)
    oracle = next(iter(evaluations.values())).get("oracle")
    if oracle:
        ceiling = [cell for metric in METRICS for cell in (f"**{oracle[metric]:.3f}**", "", "")]
        lines.append(["ceiling (exact GP)", *ceiling, *[""] * (len(head) - 1 - len(ceiling))])
    return markdown_table(head, lines)


def number_or_nothing(value: float | None, form: str) -> str:
    """A number in a cell, which stays empty without one."""
    return "" if value is None else format(value, form)


def seeds_table(results: Results) -> str:
    """Means over seeds, and differences of two models under the same seed."""
    scores = results.seeds()
    lines = [[f"`{name}`", *(mean_and_error(row[metric]) for metric in METRICS)] for name, row in scores.items()]
    for first, second in combinations(scores, 2):
        differences = [paired_difference(scores[first][m], scores[second][m]) for m in METRICS]
        lines.append([f"`{first}` − `{second}`", *(mean_and_error(each) for each in differences)])
    return markdown_table(["model", *METRICS], lines) if scores else ""


def paired_difference(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """First minus second, element by element."""
    return [a - b for a, b in zip(first, second, strict=True)]


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean."""
    return statistics.stdev(values) / len(values) ** 0.5


def mean_and_error(values: Sequence[float]) -> str:
    """The mean and its standard error.

    >>> mean_and_error([1.0, 2.0, 3.0])
    '2.000 ± 0.577'
    """
    return f"{statistics.mean(values):.3f} ± {standard_error(values):.3f}"


def active_table(results: Results) -> str:
    """Figure 3: LL by model, by how points were chosen, and by number of points."""
    data = results.figure("figure3")
    if data is None:
        return ""
    titles = {OWN: "own choice", RANDOM: "random", ORACLE: "exact GP's choice"}
    lines = []
    with reading(figure_path(results.folder, "figure3", results.budget)):
        for name, curves in data["curves"].items():
            gain = data["gain"][name]
            for choice, curve in curves.items():
                at = [curve["sizes"].index(size) for size in ACTIVE_SIZES]
                cells = [name if name == EXACT else f"`{name.lower()}`", titles[choice]]
                cells += [f"{curve['LL']['mean'][i]:.2f} ± {curve['LL']['stderr'][i]:.2f}" for i in at]
                cells.append(f"{gain['mean'][-1]:+.2f} ± {gain['stderr'][-1]:.2f}" if choice == OWN else "")
                lines.append(cells)
    return markdown_table(["model", "points", *(f"LL {size}" for size in ACTIVE_SIZES), "own − random"], lines)


def pixel_table(results: Results) -> str:
    """Figure 4: PSNR and spread for random pixels and for pixels that the model chose."""
    data = results.figure("figure4")
    if data is None:
        return ""
    sizes = list(next(iter(next(iter(data["pixels"].values())).values()))["random"])
    lines = [
        [name, model, choice]
        + [f"{scores[size]['PSNR']:.1f}" for size in sizes]
        + [f"{scores[size]['spread']:.3f}" for size in sizes]
        for name, models in data["pixels"].items()
        for model, choices in models.items()
        for choice, scores in choices.items()
    ]
    head = ["set", "model", "pixels", *(f"PSNR {size}" for size in sizes), *(f"spread {size}" for size in sizes)]
    return markdown_table(head, lines)


def explained_pixels_table(results: Results) -> str:
    """PSNR by how pixels were chosen, from ``benchmarks/pixels.py``."""
    path = results.folder / "bench" / "pixels.json"
    lines = []
    with reading(path):
        for row in read_entries(path, PIXEL_ROWS, "rows")["rows"] if path.exists() else []:
            for way, scores in row["PSNR"].items():
                errors = row["stderr"][way]
                cells = [
                    f"{score:.1f}" + (f" ({score - plain:+.1f} ± {error:.1f})" if way != "random" else "")
                    for score, plain, error in zip(scores, row["PSNR"]["random"], errors, strict=True)
                ]
                lines.append([row["task"], f"`{row['model']}`", way, *cells])
    head = ["set", "model", "pixels", *(f"{size} pixels" for size in row["sizes"])] if lines else []
    return markdown_table(head, lines) if lines else ""
