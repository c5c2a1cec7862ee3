"""Figures 2, 3 and 4 again, with the pretrained models: nothing is trained."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvdp.experiments import figure3, figure4
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.experiments.results import panel_from_json, panel_to_json
from nvdp.experiments.table1 import FIGURE_TASK_SEED
from nvdp.loading import load
from nvdp.plots import FunctionPanel, figure_functions
from nvdp.plots.panels import five_point_task, gp_function_panel, oracle_panel

NAMES = ("gp-nvdp", "gp-rates", "gp")
DIGITS, DIGIT_SETS = "mnist", ("mnist", "omniglot")  # the model of digits, and whose test images it completes
TASKS = 128


def plan(budget: str) -> Sequence[PlannedRun]:
    """No runs."""
    return []


def collect(folders: Mapping[str, Path]) -> dict[str, Any]:
    """Functions from the five points of figure 2, active learning as in figure 3, and pictures completed as in 4."""
    models = {name: load(name).model for name in NAMES}
    task = five_point_task(FIGURE_TASK_SEED)
    panels = [gp_function_panel(model, name, "five points", task) for name, model in models.items()]
    panels.append(oracle_panel(task, "five points"))
    return {
        "functions": [panel_to_json(panel) for panel in panels],
        "active": figure3.learned(models, TASKS),
        "digits": figure4.collected({name: {DIGITS: load(DIGITS).model} for name in DIGIT_SETS}),
    }


def draw(data: dict[str, Any], path: Path) -> Sequence[Path]:
    """Draw the three figures."""
    functions = [panel_from_json(FunctionPanel, panel) for panel in data["functions"]]
    written = figure_functions(functions, path.with_name(f"{path.stem}-functions{path.suffix}"))
    active, digits = (path.with_name(f"{path.stem}-{name}{path.suffix}") for name in ("active", "digits"))
    return [*written, *figure3.draw(data["active"], active, NAMES[0]), *figure4.draw(data["digits"], digits)]


PRETRAINED = Experiment("pretrained", "Figures 2, 3 and 4 with the pretrained models", plan, collect, draw)
