"""How NVDP learns most from as many tasks: one change at a time from the shipped recipe, scored on tasks apart."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nvdp.experiments.plan import Experiment, PlannedRun, paper_architecture
from nvdp.objectives import KLScale
from nvdp.training.config import RunConfig
from nvdp.training.presets import preset_config

_STEPS = {"quick": 100, "cpu": 1_000, "paper": 100_000}
_TASKS = {"quick": 64, "cpu": 512, "paper": 50_000}
TUNING_SEED = 777  # recipes are chosen by these tasks; published scores are on others

TRAINING: dict[str, dict[str, Any]] = {
    "shipped": {},
    "learning-rate-0.0005": {"learning_rate": 5e-4},
    "learning-rate-0.002": {"learning_rate": 2e-3},
    "schedule-constant": {"schedule": "constant"},
    "no-clipping": {"gradient_clip": None},
    "optimizer-adam": {"optimizer": "adam"},
    "kl-0.01": {"kl": KLScale("elbo", 0.01)},
}
MODEL: dict[str, dict[str, Any]] = {
    "no-task-norm": {"encoder.task_norm": False},
    "no-waves": {"inputs.fourier": 0},
    "waves-4": {"inputs.fourier": 4},
    "waves-16": {"inputs.fourier": 16},
    "deeper": {"decoder.layers": 4, "encoder.layers": 6, "rates.layers": 4},
    "wider-r": {"encoder.size": 256},
    "mean-of-points": {"encoder.aggregation": "mean"},
    "plain-relu": {
        "encoder.residual": False,
        "rates.residual": False,
        "encoder.activation": "relu",
        "rates.activation": "leaky_relu",
    },
    "decoder-x,r": {"decoder.sees": "x,r"},
    "rate-norm": {"rates.norm": True},
}
LONGER = 5  # times the steps, for what may be of use in short runs alone
BATCHES = (4, 8, 32)  # tasks a step, with as many steps as make the same number of tasks


def plan(budget: str) -> Sequence[PlannedRun]:
    """Runs that see the same number of tasks, the paper's recipe among them."""
    steps = _STEPS[budget]
    base = preset_config("gp", "nvdp", "cpu", steps=steps, warmup_steps=steps // 10)
    runs: dict[str, RunConfig] = {name: replace(base, **change) for name, change in TRAINING.items()}
    runs |= {name: replace(base, model=base.model.updated(change)) for name, change in MODEL.items()}
    for tasks in BATCHES:
        fewer = steps * base.tasks_per_step // tasks
        runs[f"batch-{tasks}"] = replace(base, tasks_per_step=tasks, steps=fewer, warmup_steps=fewer // 10)
    runs["paper-architecture+norm"] = paper_architecture(base, {"encoder.task_norm": True})
    runs["shipped-longer"] = replace(base, steps=LONGER * steps, warmup_steps=LONGER * steps // 10)
    runs["deeper-longer"] = replace(runs["shipped-longer"], model=runs["deeper"].model)
    runs["learning-rate-0.002-longer"] = replace(runs["shipped-longer"], learning_rate=2e-3)
    runs["paper"] = preset_config("gp", "nvdp", "paper", steps=steps)
    return [PlannedRun(name, config, _TASKS[budget], validation_seed=TUNING_SEED) for name, config in runs.items()]


RECIPES = Experiment("recipes", "NVDP's recipe, one change at a time, each with as many tasks", plan)
