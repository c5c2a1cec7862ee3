"""NVDP with the paper's architecture beside the CNP, learned variance, trained longer than in table 1."""

from collections.abc import Sequence

from nvdp.experiments.plan import Experiment, PlannedRun, paper_architecture
from nvdp.training.presets import preset_config

_STEPS = {"quick": 150, "cpu": 36_000, "paper": 500_000}
_TASKS = {"quick": 64, "cpu": 4_096, "paper": 50_000}


def plan(budget: str) -> Sequence[PlannedRun]:
    """Two runs of equal steps."""
    return [
        PlannedRun(name, paper_architecture(preset_config("gp", name, budget, steps=_STEPS[budget])), _TASKS[budget])
        for name in ("nvdp", "cnp")
    ]


LEARNING = Experiment("learning", "NVDP and CNP, the paper's architecture, trained longer", plan)
