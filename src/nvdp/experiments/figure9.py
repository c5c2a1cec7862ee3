"""Figure 9: what the dropout rates of a small network do for sine, cosine and tanh contexts (appendix E)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvdp.data.trigonometry import FUNCTIONS
from nvdp.experiments.panel_files import panel_from_json, panel_to_json
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.plots import (
    FunctionPanel,
    RatesPanel,
    SharedWeightsPanel,
    figure_rates,
    rates_panel,
    shared_weights_panel,
)
from nvdp.training.config import preset_config
from nvdp.training.run_folder import load_run

_STEPS = {"quick": 300, "cpu": 30_000, "paper": 500_000}
_TASKS = {"quick": 64, "cpu": 2_048, "paper": 50_000}


def plan(budget: str) -> Sequence[PlannedRun]:
    """One small NVDP of 13-12-12-2."""
    return [PlannedRun("nvdp", preset_config("trig", "nvdp", budget, steps=_STEPS[budget]), _TASKS[budget])]


def collect(folders: Mapping[str, Path]) -> dict[str, Any]:
    """The numbers of every panel."""
    model = load_run(folders["nvdp"])[1]
    panels = [rates_panel(model, kind) for kind in FUNCTIONS]
    return {
        "kinds": [
            {"function": panel_to_json(p.function), "keep": [layer.round(4).tolist() for layer in p.keep]}
            for p in panels
        ],
        "shared": panel_to_json(shared_weights_panel(model)),
    }


def draw(data: dict[str, Any], path: Path) -> Sequence[Path]:
    """The figure as PNG and PDF."""
    panels = []
    for kind in data["kinds"]:
        function = panel_from_json(FunctionPanel, kind["function"])
        panels.append(panel_from_json(RatesPanel, {"function": function, "keep": kind["keep"]}))
    return figure_rates(panels, path, panel_from_json(SharedWeightsPanel, data["shared"]))


FIGURE9 = Experiment("figure9", "Figure 9: dropout rates for sine, cosine and tanh", plan, collect, draw)
