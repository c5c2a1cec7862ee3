"""Table 1 extended: models whose targets read the context, in the seconds of NVDP's row.

Steps follow from what a step costs on one core beside NVDP's: 2 times as much for the attentive NVDP, 1.3 times for the
convolutional one, 1.4 times for the attentive NP, 0.8 times for the ConvCNP.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nvdp.experiments.plan import Experiment, PlannedRun, paper_architecture
from nvdp.experiments.recipes import TUNING_SEED
from nvdp.models.config import ModelConfig
from nvdp.objectives import KLScale
from nvdp.training.config import RunConfig
from nvdp.training.presets import preset_config

STEPS = {"nvdp-attentive": 5_000, "nvdp-conv": 7_500, "anp": 7_000, "convcnp": 12_000}  # NVDP: 10,000
_TASKS = {"quick": 64, "cpu": 2_048, "paper": 50_000}
_QUICK_STEPS, _PAPER_STEPS = 60, 500_000

IDEA_STEPS = 300  # of the attentive NVDP; others as many as take the same time
_IDEA_TASKS = {"quick": 64, "cpu": 256, "paper": 50_000}
IDEAS: dict[str, dict[str, Any]] = {  # changes of the model
    "as shipped": {},
    "single points alone": {"likelihood.joint_share": 0.0},
    "all points together alone": {"likelihood.joint_share": 1.0},
    "last layer sampled": {"likelihood.integrate_last": False},
    "attention by dot products": {"attention.by_distance": False},
    "two blocks of attention": {"attention.blocks": 2},
    "rates bounded by clipping": {"rates.bounds": "clip"},
    "set by attention": {"encoder.aggregation": "attention"},
    "set by Bayesian aggregation": {"encoder.aggregation": "bayesian"},
}
KL_WEIGHTS = (0.0, 0.1, 1.0)


def plan(budget: str) -> Sequence[PlannedRun]:
    """Learned variance, one seed."""
    rows = []
    for name, count in STEPS.items():
        steps = {"quick": _QUICK_STEPS, "cpu": count, "paper": _PAPER_STEPS}[budget]
        rows.append(PlannedRun(name, preset_config("gp", name, budget, steps=steps), _TASKS[budget]))
    return rows


def ideas(budget: str) -> Sequence[PlannedRun]:
    """What keeps a posterior alive, one change at a time, scored on tasks apart."""
    steps = {"quick": _QUICK_STEPS, "cpu": IDEA_STEPS, "paper": _PAPER_STEPS}[budget]
    base = preset_config("gp", "nvdp-attentive", "cpu", steps=steps, warmup_steps=steps // 10)
    runs: dict[str, RunConfig] = {
        name: replace(base, model=base.model.updated(change)) for name, change in IDEAS.items()
    }
    for weight in KL_WEIGHTS:
        runs[f"KL weight {weight:g}"] = replace(base, kl=KLScale("elbo", weight))
    rival_steps = steps * STEPS["anp"] // STEPS["nvdp-attentive"]
    rival = preset_config("gp", "anp", "cpu", steps=rival_steps, warmup_steps=rival_steps // 10)
    assert isinstance(rival.model, ModelConfig)
    runs["anp"] = rival
    runs["anp by distance"] = replace(rival, model=rival.model.updated({"attention.by_distance": True}))
    # Twice the steps: one costs half as much.
    plain = preset_config("gp", "nvdp", "cpu", steps=2 * steps, warmup_steps=steps // 5)
    runs["nvdp"] = paper_architecture(plain, {"encoder.task_norm": True})
    runs["attention to the rates alone"] = paper_architecture(
        plain, {"encoder.task_norm": True, "encoder.aggregation": "attention"}
    )
    return [
        PlannedRun(name.replace(" ", "-"), config, _IDEA_TASKS[budget], validation_seed=TUNING_SEED)
        for name, config in runs.items()
    ]


ATTENTIVE = Experiment("attentive", "Table 1 extended: models whose targets read the context, in NVDP's seconds", plan)
LIVING = Experiment("living", "What keeps the attentive posterior alive, one change at a time", ideas)
