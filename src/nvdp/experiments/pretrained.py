"""Figures 2 and 3 again, with the pretrained models of GP functions: nothing is trained."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvdp.experiments import figure3
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.experiments.results import panel_from_json, panel_to_json
from nvdp.experiments.table1 import FIGURE_TASK_SEED
from nvdp.loading import load
from nvdp.plots import FunctionPanel, figure_functions
from nvdp.plots.panels import five_point_task, gp_function_panel, oracle_panel

NAMES = ("gp-nvdp", "gp-rates", "gp")
TASKS = 128


def plan(budget: str) -> Sequence[PlannedRun]:
    """No runs."""
    return []


def collect(folders: Mapping[str, Path]) -> dict[str, Any]:
    """Functions that each model samples from the five points of figure 2, and its active learning as in figure 3."""
    models = {name: load(name).model for name in NAMES}
    task = five_point_task(FIGURE_TASK_SEED)
    panels = [gp_function_panel(model, name, "five points", task) for name, model in models.items()]
    panels.append(oracle_panel(task, "five points"))
    return {"functions": [panel_to_json(panel) for panel in panels], "active": figure3.learned(models, TASKS)}


def draw(data: dict[str, Any], path: Path) -> Sequence[Path]:
    """Draw both figures."""
    functions = [panel_from_json(FunctionPanel, panel) for panel in data["functions"]]
    written = figure_functions(functions, path.with_name(f"{path.stem}-functions{path.suffix}"))
    active = path.with_name(f"{path.stem}-active{path.suffix}")
    return [*written, *figure3.draw(data["active"], active, NAMES[0])]


PRETRAINED = Experiment("pretrained", "Figures 2 and 3 with the pretrained models", plan, collect, draw)
