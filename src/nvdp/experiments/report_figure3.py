"""The section of figure 3 on the results page: what choosing points is worth to each model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nvdp.experiments.figure3 import EXACT, ORACLE, OWN, RANDOM
from nvdp.experiments.results import FIGURE_SUFFIX

SHOWN = (1, 3, 5, 10, 20)
TEXT = """GP functions, {tasks} validation tasks, {candidates} candidates on [−2, 2]; the models of table 1 with a
learned variance, {steps:,} steps each, and those whose targets read the context, if they are there, trained for as
long. One random point, then 19 that the learner chooses by the variance across its sampled functions (a CNP, which has
one function, by its predictive variance). LL is the log of the predictive density over all candidates, ± the standard
error over tasks. Beside each model's own choice stand as many *random* points and those that the *exact GP* with the
task's true kernel would choose, the two ends of the scale; the last column is own less random after 20 points, task by
task. The models have learned from random contexts of at least 3 points: chosen ones are unlike those."""


def figure3_section(folder: Path, budget: str) -> str:
    """The section as Markdown; empty if there are no results."""
    path = folder / "figure3" / f"{budget}{FIGURE_SUFFIX}"
    if not path.exists():
        return ""
    data = json.loads(path.read_text())
    head = TEXT.format(tasks=data["tasks"], candidates=data["candidates"], steps=data["steps"])
    return "\n".join(["## Figure 3: active learning", "", head, "", *_table(data)])


def _table(data: dict[str, Any]) -> Iterator[str]:
    columns = ["model", "points", *(f"LL {size}" for size in SHOWN), "own − random"]
    yield "| " + " | ".join(columns) + " |"
    yield "|" + " --- |" * len(columns)
    titles = {OWN: "own choice", RANDOM: "random", ORACLE: "exact GP's choice"}
    for name, ways in data["curves"].items():
        gain = data["gain"][name]
        for way, curve in ways.items():
            at = [curve["sizes"].index(size) for size in SHOWN]
            cells = [f"{curve['LL']['mean'][i]:.2f} ± {curve['LL']['stderr'][i]:.2f}" for i in at]
            cells.append(f"{gain['mean'][-1]:+.2f} ± {gain['stderr'][-1]:.2f}" if way == OWN else "")
            label = name if name == EXACT else f"`{name.lower()}`"
            yield f"| {label} | {titles[way]} | " + " | ".join(cells) + " |"
