"""How NVDP's classifier is made and trained best: one change at a time, scored on validation classes alone."""

from collections.abc import Sequence
from typing import Any

from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.experiments.table3 import extractor_name, prepare_extractor
from nvdp.objectives import KLScale
from nvdp.training.config import RunConfig
from nvdp.training.presets import preset_config

TASK, WAY, SHOT = "miniimagenet", 5, 1
TUNING_SEED = 777  # choices are made by these episodes of validation classes; published scores are of test classes
_STEPS = {"quick": 20, "cpu": 300, "paper": 50_000}  # of 4 episodes: half a minute of one core for NVDP
_EPISODES = {"quick": 20, "cpu": 600, "paper": 600}

SHIPPED = "shipped"
MODEL: dict[str, dict[str, Any]] = {
    SHIPPED: {},
    "rates-by-the-network-alone": {"rates.path": "network"},
    "rates-see-the-plain-mean": {"rates.sees": "mean"},
    "paper-rates": {"rates.path": "network", "rates.sees": "mean"},
    "decoder-sees-r": {"decoder.sees": "x,r"},
}
KL_WEIGHTS = (0.0, 1e-6, 1e-4, 1e-3)
RIVALS = ("protonet", "versa", "cnp")


def plan(budget: str) -> Sequence[PlannedRun]:
    """NVDP with every change, and rivals beside it, all on the features of table 3's extractor."""
    features = None if budget == "paper" else extractor_name(TASK, budget)
    steps = _STEPS[budget]

    def config(model: str, **changes: Any) -> RunConfig:
        preset = {"steps": steps, "warmup_steps": steps // 10, "tasks_per_step": 4}
        return preset_config(TASK, model, "cpu", way=WAY, shot=SHOT, features=features, **(preset | changes))

    runs = {name: config("nvdp", architecture=changes) for name, changes in MODEL.items()}
    runs |= {f"kl-{weight:g}": config("nvdp", kl=KLScale("elbo", weight)) for weight in KL_WEIGHTS}
    runs |= {name: config(name) for name in RIVALS}
    return [
        PlannedRun(name, run, _EPISODES[budget], split="validation", validation_seed=TUNING_SEED)
        for name, run in runs.items()
    ]


def prepare(budget: str, device: str) -> None:
    """Pretrain the one extractor, if the budget uses it and it is not there."""
    if budget != "paper":
        prepare_extractor(TASK, budget, device)


FEWSHOT_CHOICES = Experiment(
    "fewshot-choices", "NVDP's classifier, one change at a time, on validation classes", plan, prepare=prepare
)
