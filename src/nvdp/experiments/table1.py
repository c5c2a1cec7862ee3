"""Table 1 and its appendix twin: six models, fixed and learned variance, on GP functions; and NVDP as it is shipped."""

from collections.abc import Sequence

from nvdp.experiments.plan import Experiment, PlannedRun, paper_architecture
from nvdp.training.config import preset_config

NAMES = ("np", "np+vp", "np+cnp", "np+cnp+vp", "nvdp", "cnp")  # the paper's order
SHIPPED = "nvdp+norm"  # the default model: r normalised over tasks
VARIANCES = ("fixed", "learned")
_STEPS = {"quick": 150, "cpu": 10_000, "paper": 500_000}
_TASKS = {"quick": 64, "cpu": 2_048, "paper": 50_000}


def paper_rows(budget: str) -> Sequence[PlannedRun]:
    """The paper's models, equal steps for all, one seed."""
    return [
        PlannedRun(
            f"{name}-{variance}",
            paper_architecture(preset_config("gp", name, budget, variance, steps=_STEPS[budget])),
            _TASKS[budget],
        )
        for variance in reversed(VARIANCES)
        for name in NAMES
    ]


def plan(budget: str) -> Sequence[PlannedRun]:
    """These, and the model that is shipped."""
    shipped = preset_config("gp", "nvdp", "cpu", steps=_STEPS[budget])
    return [*paper_rows(budget), PlannedRun(f"{SHIPPED}-learned", shipped, _TASKS[budget])]


TABLE1 = Experiment("table1", "Table 1: six models × two variances on GP functions", plan)
