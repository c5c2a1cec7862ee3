"""Table 1 and its appendix twin: six models, fixed and learned variance, on GP functions; and NVDP as it is shipped."""

from collections.abc import Sequence
from dataclasses import replace

from nvdp.experiments.plan import Experiment, PlannedRun, paper_architecture
from nvdp.training.config import preset_config

NAMES = ("np", "np+vp", "np+cnp", "np+cnp+vp", "nvdp", "cnp")  # the paper's order
SHIPPED = "nvdp-shipped"  # the default model: what `nvdp train` gives
VARIANCES = ("fixed", "learned")
SEEDED = ("np+cnp", "np+cnp+vp", "nvdp", "cnp")  # with learned variance, under further seeds
SEEDS = (1, 2)
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


def seeded_name(name: str, seed: int) -> str:
    """The run of a model with learned variance under a seed; the first seed's is the table's own.

    >>> seeded_name("cnp", 0), seeded_name("cnp", 2)
    ('cnp-learned', 'cnp-learned-seed-2')
    """
    return f"{name}-learned" + (f"-seed-{seed}" if seed else "")


def plan(budget: str) -> Sequence[PlannedRun]:
    """These, the model that is shipped, and further seeds of some."""
    rows = paper_rows(budget)
    shipped = preset_config("gp", "nvdp", "cpu", steps=_STEPS[budget])
    learned = {run.name: run for run in rows}
    seeded = [
        replace(run, name=seeded_name(name, seed), config=replace(run.config, seed=seed))
        for seed in SEEDS
        for name in SEEDED
        for run in [learned[seeded_name(name, 0)]]
    ]
    return [*rows, PlannedRun(f"{SHIPPED}-learned", shipped, _TASKS[budget]), *seeded]


TABLE1 = Experiment("table1", "Table 1: six models × two variances on GP functions", plan)
