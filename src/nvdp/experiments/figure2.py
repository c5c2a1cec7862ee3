"""Figure 2: functions sampled by every model from the same five context points, fixed and learned variance."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvdp.experiments.panel_files import panel_from_json, panel_to_json
from nvdp.experiments.plan import Experiment
from nvdp.experiments.table1 import NAMES, VARIANCES, paper_rows
from nvdp.plots import FunctionPanel, figure_functions, five_point_task, gp_function_panel, oracle_panel
from nvdp.training.run_folder import load_run

TASK_SEED = 2


def collect(folders: Mapping[str, Path]) -> list[dict[str, Any]]:
    """The numbers of every panel, from the runs of table 1."""
    task = five_point_task(TASK_SEED)
    panels = []
    for variance in VARIANCES:
        row = f"{variance} variance"
        for name in NAMES:
            model = load_run(folders[f"{name}-{variance}"])[1]
            panels.append(gp_function_panel(model, name.upper(), row, task))
        panels.append(oracle_panel(task, row))
    return [panel_to_json(panel) for panel in panels]


def draw(data: list[dict[str, Any]], path: Path) -> Sequence[Path]:
    """The figure as PNG and PDF."""
    return figure_functions([panel_from_json(FunctionPanel, panel) for panel in data], path)


FIGURE2 = Experiment("figure2", "Figure 2: functions sampled from five context points", paper_rows, collect, draw)
