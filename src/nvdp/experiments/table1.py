"""Table 1 and its appendix twin: six models, fixed and learned variance, on GP functions."""

from collections.abc import Sequence

from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.training.config import preset_config

NAMES = ("np", "np+vp", "np+cnp", "np+cnp+vp", "nvdp", "cnp")  # the paper's order
VARIANCES = ("fixed", "learned")
_STEPS = {"quick": 150, "cpu": 10_000, "paper": 500_000}
_TASKS = {"quick": 64, "cpu": 2_048, "paper": 50_000}


def plan(budget: str) -> Sequence[PlannedRun]:
    """Equal steps for all models, one seed."""
    return [
        PlannedRun(
            f"{name}-{variance}",
            preset_config("gp", name, budget, variance, steps=_STEPS[budget]),
            _TASKS[budget],
        )
        for variance in reversed(VARIANCES)
        for name in NAMES
    ]


TABLE1 = Experiment("table1", "Table 1: six models × two variances on GP functions", plan)
