"""Table 3: eight few-shot classifiers on Omniglot and miniImageNet, in three regimes with separate tables.

End to end, a method trains its own extractor on episodes. On features, all methods train on the features of the same
extractors, which were pretrained on the training classes. Fine-tuned, a method's own extractor begins as the first of
these, and is trained further on episodes. The cpu budget trains everything on features, and 5-way Omniglot in the other
two regimes too; the paper budget trains everything end to end.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nvdp.data.features import extractor_folder, extractor_names
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.training.config import PretrainConfig, RunConfig, recipe_digest
from nvdp.training.presets import preset_config, shortened
from nvdp.training.pretrain import pretrain, pretrain_config
from nvdp.training.pretrained_extractor import EXTRACTOR

METHODS = {  # the paper's order and names
    "matching": "Matching Nets",
    "protonet": "Prototypical Nets",
    "cnp": "CNP",
    "meta-sgd": "Meta-SGD",
    "meta-dropout": "Meta-SGD + Meta-dropout",
    "maml": "MAML",
    "versa": "VERSA",
    "nvdp": "NVDP",
}
PAPER_RATES = "nvdp-paper-rates"  # a row of its own on features: NVDP with rates as the paper describes them
PAPER_ARCHITECTURE = {"rates.path": "network", "rates.sees": "mean", "decoder.width": 512}  # NVDP's in the paper


@dataclass(frozen=True)
class Setting:
    """One column of the table."""

    task: str
    way: int
    shot: int

    @property
    def paper(self) -> str:
        """Its name in the paper."""
        name = "Omniglot" if self.task == "omniglot-fewshot" else "MiniImageNet"
        return f"{name} {self.way}-way {self.shot}-shot"

    @property
    def short(self) -> str:
        """Its part of a run's name."""
        return f"{self.task.removesuffix('-fewshot')}-{self.way}w{self.shot}s"


SETTINGS = (
    *(Setting("omniglot-fewshot", way, shot) for way in (5, 20) for shot in (1, 5)),
    *(Setting("miniimagenet", 5, shot) for shot in (1, 5)),
)
EPISODES = {"quick": 20, "cpu": 600, "paper": 600}
# The cpu budget gives every method about the same time, some 7 minutes of one core end to end: steps follow from what a
# step costs. Methods that adapt by gradients take fewer episodes a step, so that they can take more steps.
GRADIENT_STEPS = {"maml": (1_600, 500), "meta-sgd": (1_300, 300), "meta-dropout": (800, 200)}  # 1-shot, 5-shot
SET_STEPS = (1_500, 800)
FINE_TUNED_SHARE = 0.5  # of these steps, from a pretrained extractor
FINE_TUNED_NVDP = (300, 250)  # whose step takes longer, as its network is twice as wide as the features
GRADIENT_TASKS = {"maml": 4, "meta-sgd": 2, "meta-dropout": 2}  # episodes a step
# Steps on features, chosen on validation classes in 1-shot episodes, 20-way of Omniglot and 5-way of miniImageNet, of
# the numbers in benchmarks/fewshot_steps.py; of equal accuracies the one with the lower calibration error.
FEATURE_STEPS = {
    "omniglot-fewshot": dict.fromkeys(("nvdp", "matching", "protonet"), 2)
    | dict.fromkeys(("maml", "meta-sgd", "meta-dropout"), 300)
    | {PAPER_RATES: 500},
    "miniimagenet": dict.fromkeys(("nvdp", "matching", "protonet"), 2)
    | dict.fromkeys(("cnp", "versa", "meta-sgd", "meta-dropout", PAPER_RATES), 100)
    | {"maml": 500},
}
OTHER_FEATURE_STEPS = 1_500
WIDE = {"tasks_per_step": 2, "queries": 5}  # 20-way on features: NVDP evaluates every query once for each class
# The extractors of a task. The third of miniImageNet sees stronger changes of its images: extractors that differ make
# different errors. cpu: some 40 minutes of a core for each of Omniglot, 95 for each of miniImageNet.
OMNIGLOT = {"views": "warped", "components": 96}
MINIIMAGENET = {"extractor": "conv5-wide", "components": 128, "steps": 12_000}
RECIPES: dict[tuple[str, str], tuple[dict[str, Any], ...]] = {
    ("quick", "omniglot-fewshot"): ({"steps": 10},),
    ("quick", "miniimagenet"): ({"steps": 2},),
    ("cpu", "omniglot-fewshot"): tuple(OMNIGLOT | {"steps": steps} for steps in (7_000, 9_000, 9_000)),
    ("cpu", "miniimagenet"): tuple(
        MINIIMAGENET | changes for changes in ({}, {}, {"shifts": 0, "crops": 0.4, "colours": 0.4})
    ),
}


def regimes_of(setting: Setting, budget: str) -> tuple[str, ...]:
    """The regimes of a column in a budget."""
    if budget == "paper":
        return ("end-to-end",)
    if setting.task == "omniglot-fewshot" and setting.way == 5:
        return ("end-to-end", "fine-tuned", "features")
    return ("features",)


def method_of(row: str) -> str:
    """The method of a row."""
    return "nvdp" if row == PAPER_RATES else row


def rows_of(regime: str) -> tuple[str, ...]:
    """The rows of a regime's tables: every method, and on features NVDP with the paper's rates."""
    return (*METHODS, PAPER_RATES) if regime == "features" else tuple(METHODS)


def run_name(method: str, setting: Setting, regime: str) -> str:
    """Name of a run and of its result."""
    return f"{method}-{setting.short}-{regime}"


def plan(budget: str) -> Sequence[PlannedRun]:
    """Every method in every column, one seed, scored on test classes."""
    return [
        PlannedRun(
            run_name(row, setting, regime),
            _config(row, setting, budget, regime),
            EPISODES[budget],
            split="test",
        )
        for setting in SETTINGS
        for regime in regimes_of(setting, budget)
        for row in rows_of(regime)
    ]


def feature_steps(task: str, row: str) -> int:
    """Steps of a row on features, cpu budget."""
    return FEATURE_STEPS[task].get(row, OTHER_FEATURE_STEPS)


def _config(row: str, setting: Setting, budget: str, regime: str) -> RunConfig:
    method = method_of(row)
    architecture: dict[str, Any] = dict(PAPER_ARCHITECTURE) if row == PAPER_RATES else {}
    changes = _lengths(method, setting, budget, regime)
    if regime != "end-to-end":
        extractors = extractors_of(setting.task, budget)
        if regime == "features":
            architecture["extractor.features"] = sum(one.features for one in extractors.values())
            changes["features"] = ",".join(extractors)
        else:
            changes["extractor"], changes["recipe"] = next(iter(extractors.items()))
    config = preset_config(
        setting.task,
        method,
        budget,
        way=setting.way,
        shot=setting.shot,
        architecture=architecture,
        **changes,
    )
    if budget == "cpu" and regime == "features":
        return shortened(config, feature_steps(setting.task, row))
    return config


def _lengths(method: str, setting: Setting, budget: str, regime: str) -> dict[str, Any]:
    if budget == "paper":
        return {}
    if budget == "quick":
        return {"steps": 20 if regime == "features" else 4, "tasks_per_step": 2, "warmup_steps": 0}
    if regime == "features":
        return dict(WIDE) if setting.way > 5 else {}
    steps = GRADIENT_STEPS.get(method, SET_STEPS)[setting.shot > 1]
    if regime == "fine-tuned":
        steps = FINE_TUNED_NVDP[setting.shot > 1] if method == "nvdp" else int(FINE_TUNED_SHARE * steps)
    tasks = {"tasks_per_step": GRADIENT_TASKS[method]} if method in GRADIENT_TASKS else {}
    return {"steps": steps, "warmup_steps": min(100, steps // 4), **tasks}


def extractors_of(task: str, budget: str) -> dict[str, PretrainConfig]:
    """The extractors that the runs of a budget share: how each is pretrained, by its name in the user's cache.

    A name has a digest of the recipe, so that results on features of another recipe are not taken for those of this.
    """
    recipes = [pretrain_config(task, seed=seed, **own) for seed, own in enumerate(RECIPES[budget, task])]
    return {f"table3-{task}-{budget}-{recipe_digest(recipe)[:8]}": recipe for recipe in recipes}


def prepare(runs: Sequence[PlannedRun], budget: str, device: str) -> None:
    """Pretrain the extractors that the runs need and that do not exist yet; an interrupted one resumes."""
    needed = dict.fromkeys((run.config.task, name) for run in runs for name in _extractors_needed(run.config))
    for task, name in needed:
        _prepare_extractor(name, extractors_of(task, budget)[name], device)


def _extractors_needed(config: RunConfig) -> Sequence[str]:
    """The extractors whose features a run learns from, or with which it begins."""
    if config.episodes is not None and config.episodes.features is not None:
        return extractor_names(config.episodes.features)
    return [] if config.start is None else [config.start]


def _prepare_extractor(name: str, config: PretrainConfig, device: str) -> None:
    """Pretrain one extractor, unless it exists."""
    folder = extractor_folder(name)
    progress = not (folder / EXTRACTOR).exists()
    stopped = pretrain(config, folder, resume=True, device=device, threads=1, progress=progress, said=_say)
    if stopped is not None:
        raise KeyboardInterrupt


def _say(line: str) -> None:
    print(line, file=sys.stderr)


TABLE3 = Experiment("table3", "Table 3: eight few-shot classifiers on Omniglot and miniImageNet", plan, prepare=prepare)
