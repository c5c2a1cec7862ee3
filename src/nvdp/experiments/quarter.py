"""The shipped recipe in a quarter of the paper recipe's steps: what the choices on the page of recipes add up to."""

from collections.abc import Sequence

from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.training.config import preset_config

_STEPS = {"quick": 200, "cpu": 27_000, "paper": 100_000}  # of the paper's recipe
_TASKS = {"quick": 64, "cpu": 2_048, "paper": 50_000}


def plan(budget: str) -> Sequence[PlannedRun]:
    """The same architecture sizes, a step of which costs the same."""
    steps, tasks = _STEPS[budget], _TASKS[budget]
    return [
        PlannedRun("paper-recipe", preset_config("gp", "nvdp", "paper", steps=steps), tasks),
        PlannedRun("shipped-recipe", preset_config("gp", "nvdp", "cpu", steps=steps // 4), tasks),
    ]


QUARTER = Experiment("quarter", "The shipped recipe against the paper's in four times the steps", plan)
