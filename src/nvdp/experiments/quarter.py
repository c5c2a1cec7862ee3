"""What 100,000 steps of the paper's recipe reach, and the shipped models in a quarter of that time or less."""

from collections.abc import Sequence

from nvdp.experiments.attentive import STEPS
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.training.config import preset_config

_STEPS = {"quick": 200, "cpu": 100_000, "paper": 100_000}  # of the paper's recipe
_TASKS = {"quick": 64, "cpu": 2_048, "paper": 50_000}


def plan(budget: str) -> Sequence[PlannedRun]:
    """The paper's model under both recipes, a step of which costs the same; the attentive model's step costs twice."""
    steps, tasks = _STEPS[budget], _TASKS[budget]
    attentive = STEPS["nvdp-attentive"] if budget == "cpu" else steps // 8
    return [
        PlannedRun("paper-recipe", preset_config("gp", "nvdp", "paper", steps=steps), tasks),
        PlannedRun("shipped-recipe", preset_config("gp", "nvdp", "cpu", steps=steps // 4), tasks),
        PlannedRun("nvdp-attentive", preset_config("gp", "nvdp-attentive", "cpu", steps=attentive), tasks),
    ]


QUARTER = Experiment("quarter", "The shipped models against the paper's recipe in four times the time or more", plan)
