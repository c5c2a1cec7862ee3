"""Table 1 extended: the attentive NVDP and its rival, the attentive NP, in the seconds of NVDP's rows.

Steps follow from what a step costs on one core beside NVDP's: twice as much for the attentive NVDP, 1.4 times for the
attentive NP. The short runs take as long as NVDP's row of table 1, the long ones as long as its row of `learning`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.experiments.recipes import TUNING_SEED
from nvdp.models.config import ModelConfig
from nvdp.objectives import KLScale
from nvdp.training.config import RunConfig, preset_config

LENGTHS = {"short": {"nvdp-attentive": 5_000, "anp": 7_000}, "long": {"nvdp-attentive": 18_000, "anp": 25_000}}
_TASKS = {"quick": 64, "cpu": 2_048, "paper": 50_000}
_QUICK_STEPS, _PAPER_STEPS = 60, 500_000

IDEA_STEPS = 1_500  # of the attentive NVDP; others as many as take the same time
_IDEA_TASKS = {"quick": 64, "cpu": 512, "paper": 50_000}
IDEAS: dict[str, dict[str, Any]] = {  # changes of the model
    "as shipped": {},
    "single points alone": {"joint_share": 0.0},
    "all points together alone": {"joint_share": 1.0},
    "last layer sampled": {"integrate_last": False},
    "attention by dot products": {"attention_by_distance": False},
    "two blocks of attention": {"attention_blocks": 2},
    "rates bounded by clipping": {"rate_bounds": "clip"},
    "set by attention": {"aggregation": "attention"},
    "set by Bayesian aggregation": {"aggregation": "bayesian"},
}
KL_WEIGHTS = (0.0, 0.1, 1.0)


def plan(budget: str) -> Sequence[PlannedRun]:
    """Both models, short and long, one seed."""
    rows = []
    for length, steps in LENGTHS.items():
        for name, count in steps.items():
            count = {"quick": _QUICK_STEPS, "cpu": count, "paper": _PAPER_STEPS}[budget]
            config = preset_config("gp", name, budget, steps=count)
            rows.append(PlannedRun(f"{name}-{length}", config, _TASKS[budget]))
    return rows


def ideas(budget: str) -> Sequence[PlannedRun]:
    """What keeps a posterior alive, one change at a time, scored on tasks apart."""
    steps = {"quick": _QUICK_STEPS, "cpu": IDEA_STEPS, "paper": _PAPER_STEPS}[budget]
    base = preset_config("gp", "nvdp-attentive", "cpu", steps=steps, warmup_steps=steps // 10)
    runs: dict[str, RunConfig] = {
        name: replace(base, model=replace(base.model, **change)) for name, change in IDEAS.items()
    }
    for weight in KL_WEIGHTS:
        runs[f"KL weight {weight:g}"] = replace(base, kl=KLScale("elbo", weight))
    rival_steps = steps * LENGTHS["short"]["anp"] // LENGTHS["short"]["nvdp-attentive"]
    rival = preset_config("gp", "anp", "cpu", steps=rival_steps, warmup_steps=rival_steps // 10)
    assert isinstance(rival.model, ModelConfig)
    runs["anp"] = rival
    runs["anp by distance"] = replace(rival, model=replace(rival.model, attention_by_distance=True))
    return [
        PlannedRun(name.replace(" ", "-"), config, _IDEA_TASKS[budget], validation_seed=TUNING_SEED)
        for name, config in runs.items()
    ]


ATTENTIVE = Experiment("attentive", "Table 1 extended: attentive NVDP and NP in NVDP's seconds", plan)
LIVING = Experiment("living", "What keeps the attentive posterior alive, one change at a time", ideas)
