"""Table 1 and its appendix twin: six models, fixed and learned variance, on GP functions; and the six as shipped."""

from collections.abc import Sequence

from nvdp.experiments.plan import Experiment, PlannedRun, paper_architecture
from nvdp.training.presets import preset_config

NAMES = ("np", "np+vp", "np+cnp", "np+cnp+vp", "nvdp", "cnp")  # the paper's order
VARIANCES = ("fixed", "learned")
SEEDED = ("np+cnp", "np+cnp+vp", "nvdp", "cnp")  # as shipped, under further seeds
SEEDS = (1, 2)
_STEPS = {"quick": 150, "cpu": 10_000, "paper": 500_000}
_SHIPPED_STEPS = {"quick": 150, "cpu": 5_000, "paper": 500_000}
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


def shipped_name(name: str, seed: int = 0) -> str:
    """The run of a model as `nvdp train` gives it, with learned variance, under a seed.

    >>> shipped_name("cnp"), shipped_name("cnp", 2)
    ('cnp-shipped', 'cnp-shipped-seed-2')
    """
    return f"{name}-shipped" + (f"-seed-{seed}" if seed else "")


def plan(budget: str) -> Sequence[PlannedRun]:
    """These, the six as they are shipped, and further seeds of some."""
    shipped = [(name, 0) for name in NAMES] + [(name, seed) for seed in SEEDS for name in SEEDED]
    return [
        *paper_rows(budget),
        *(
            PlannedRun(
                shipped_name(name, seed),
                preset_config("gp", name, "cpu", steps=_SHIPPED_STEPS[budget], seed=seed),
                _TASKS[budget],
            )
            for name, seed in shipped
        ),
    ]


TABLE1 = Experiment("table1", "Table 1: six models × two variances on GP functions", plan)
