"""What 100,000 steps of the paper's recipe reach, and the shipped models in a quarter of these or fewer."""

from collections.abc import Sequence
from dataclasses import replace

from nvdp.experiments.attentive import STEPS
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.training.presets import preset_config

_STEPS = {"quick": 200, "cpu": 100_000, "paper": 100_000}  # of the paper's recipe
_TASKS = {"quick": 64, "cpu": 2_048, "paper": 50_000}


def plan(budget: str) -> Sequence[PlannedRun]:
    """The paper's recipe, what is shipped in a quarter of its steps or fewer, and NVDP's preset as it is."""
    steps, tasks = _STEPS[budget], _TASKS[budget]
    whole = preset_config("gp", "nvdp", "cpu")
    attentive = STEPS["nvdp-attentive"] if budget == "cpu" else steps // 8
    return [
        PlannedRun("paper-recipe", preset_config("gp", "nvdp", "paper", steps=steps), tasks),
        PlannedRun("shipped-recipe", preset_config("gp", "nvdp", "cpu", steps=steps // 4), tasks),
        PlannedRun("shipped-preset", whole if budget == "cpu" else replace(whole, steps=steps // 2), tasks),
        PlannedRun("nvdp-attentive", preset_config("gp", "nvdp-attentive", "cpu", steps=attentive), tasks),
    ]


QUARTER = Experiment(
    "quarter", "The shipped models against four times their steps, or more, of the paper's recipe", plan
)
