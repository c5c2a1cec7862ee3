"""Table 1 and its appendix twin: six models on GP functions, fixed and learned variance. Figure 2: their functions.

The table also has the same six models by the tuned recipe, some of them under further seeds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvdp.experiments.plan import USUAL_BOUND, Experiment, PlannedRun, former_preset, paper_architecture
from nvdp.experiments.results import panel_from_json, panel_to_json
from nvdp.plots import FunctionPanel, figure_functions, five_point_task, gp_function_panel, oracle_panel
from nvdp.training.run_folder import load_run

NAMES = ("np", "np+vp", "np+cnp", "np+cnp+vp", "nvdp", "cnp")  # the paper's order
VARIANCES = ("fixed", "learned")
SEEDED = ("np+cnp", "np+cnp+vp", "nvdp", "cnp")  # tuned recipe, under further seeds
SEEDS = (1, 2)
STEPS = {"quick": 150, "cpu": 10_000, "paper": 500_000}
SHIPPED_STEPS = {"quick": 150, "cpu": 5_000, "paper": 500_000}
TASKS = {"quick": 64, "cpu": 2_048, "paper": 50_000}
FIGURE_TASK_SEED = 2


def paper_rows(budget: str) -> Sequence[PlannedRun]:
    """The paper's models, equal steps for all, one seed."""
    return [
        PlannedRun(
            f"{name}-{variance}",
            paper_architecture(former_preset("gp", name, budget, variance, steps=STEPS[budget])),
            TASKS[budget],
        )
        for variance in reversed(VARIANCES)
        for name in NAMES
    ]


def shipped_name(name: str, seed: int = 0) -> str:
    """Name of the run of a model as `nvdp train` trains it, with learned variance.

    >>> shipped_name("cnp"), shipped_name("cnp", 2)
    ('cnp-shipped', 'cnp-shipped-seed-2')
    """
    return f"{name}-shipped" + (f"-seed-{seed}" if seed else "")


def plan(budget: str) -> Sequence[PlannedRun]:
    """The paper's rows, the six models by the tuned recipe, and further seeds of some."""
    shipped = [(name, 0) for name in NAMES] + [(name, seed) for seed in SEEDS for name in SEEDED]
    steps, tasks = SHIPPED_STEPS[budget], TASKS[budget]
    return [
        *paper_rows(budget),
        *(
            PlannedRun(
                shipped_name(name, seed),
                former_preset("gp", name, "cpu", steps=steps, seed=seed, architecture=USUAL_BOUND),
                tasks,
            )
            for name, seed in shipped
        ),
    ]


def collect(folders: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Panels of figure 2: functions that each model samples from the same five context points."""
    task = five_point_task(FIGURE_TASK_SEED)
    panels = []
    for variance in VARIANCES:
        row = f"{variance} variance"
        for name in NAMES:
            model = load_run(folders[f"{name}-{variance}"])[1]
            panels.append(gp_function_panel(model, name.upper(), row, task))
        panels.append(oracle_panel(task, row))
    return [panel_to_json(panel) for panel in panels]


def draw(data: list[dict[str, Any]], path: Path) -> Sequence[Path]:
    """Draw figure 2."""
    return figure_functions([panel_from_json(FunctionPanel, panel) for panel in data], path)


TABLE1 = Experiment("table1", "Table 1: six models × two variances on GP functions", plan)
FIGURE2 = Experiment("figure2", "Figure 2: functions sampled from five context points", paper_rows, collect, draw)
