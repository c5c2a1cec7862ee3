"""Figure 9 (appendix E): dropout rates of a small network for sine, cosine and tanh contexts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvdp.data.trigonometry import FUNCTIONS
from nvdp.experiments.plan import Experiment, PlannedRun, changed
from nvdp.experiments.results import DIGITS, panel_from_json, panel_to_json
from nvdp.models.base import MetaModel
from nvdp.plots import FunctionPanel, RatesPanel, SharedWeightsPanel, figure_rates, rates_panel, shared_weights_panel
from nvdp.training.presets import preset_config
from nvdp.training.run_folder import load_run

STEPS = {"quick": 300, "cpu": 12_000, "paper": 500_000}
TASKS = {"quick": 64, "cpu": 2_048, "paper": 50_000}


def plan(budget: str) -> Sequence[PlannedRun]:
    """The paper's 13-12-12-2, whose decoder sees (x, r), and one whose decoder sees x alone."""
    paper = preset_config("trig", "nvdp", budget, steps=STEPS[budget])
    without_r = changed(paper, {"model.decoder.sees": "x"})
    return [PlannedRun("nvdp", paper, TASKS[budget]), PlannedRun("nvdp-decoder-x", without_r, TASKS[budget])]


def collect(folders: Mapping[str, Path]) -> dict[str, Any]:
    """Panels by run."""
    return {name: _panels(load_run(folder)[1]) for name, folder in folders.items()}


def _panels(model: MetaModel) -> dict[str, Any]:
    panels = [rates_panel(model, kind) for kind in FUNCTIONS]
    kinds = [
        {"function": panel_to_json(p.function), "keep": [layer.round(DIGITS).tolist() for layer in p.keep]}
        for p in panels
    ]
    return {"kinds": kinds, "shared": panel_to_json(shared_weights_panel(model))}


def draw(data: dict[str, Any], path: Path) -> Sequence[Path]:
    """Draw one figure for each run."""
    written: list[Path] = []
    for name, figure in data.items():
        panels = []
        for kind in figure["kinds"]:
            function = panel_from_json(FunctionPanel, kind["function"])
            panels.append(panel_from_json(RatesPanel, {"function": function, "keep": kind["keep"]}))
        place = path.with_name(path.stem + name.removeprefix("nvdp") + path.suffix)
        written += figure_rates(panels, place, panel_from_json(SharedWeightsPanel, figure["shared"]))
    return written


FIGURE9 = Experiment("figure9", "Figure 9: dropout rates for sine, cosine and tanh", plan, collect, draw)
