"""Presets of few-shot classification: the paper's training is VERSA's, the others fit one core and minutes or hours."""

from dataclasses import replace
from typing import Any

from nvdp.data.config import NO_DATA, DataConfig
from nvdp.data.episodes import EpisodeConfig
from nvdp.data.fewshot_sets import FEWSHOT_TASKS, class_source
from nvdp.errors import unknown_name
from nvdp.models.fewshot_config import GRADIENT_MODELS, FewShotConfig
from nvdp.models.registry import check_serves, model_spec
from nvdp.nn.conv import EXTRACTORS
from nvdp.objectives import KLScale
from nvdp.training.config import RunConfig
from nvdp.training.pretrain_config import CONV5_SIZE

FEWSHOT_PRESETS = ("quick", "cpu", "paper")
QUERIES = {"quick": 5, "cpu": 5, "paper": 15}  # of a class; features cost so little that they take 15 at any budget
# The sum over all classes' weights is large where rates differ from the start: a weight of 0.001 can press them all to
# their floor, and the classifier stays at chance.
NVDP_FEWSHOT_KL = KLScale("elbo", 1e-5)
NVDP_QUICK_START = {"rate_sees": "contrast", "rate_path": "activations"}

# VERSA's numbers of steps, tasks a step and rate, by task, classes and shots; other shapes take those of 5-way 5-shot.
_PAPER: dict[tuple[str, int, int], dict[str, Any]] = {
    ("omniglot-fewshot", 20, 5): {"steps": 60_000},
    ("omniglot-fewshot", 20, 1): {"steps": 100_000},
    ("miniimagenet", 5, 5): {"steps": 100_000, "tasks_per_step": 4},
    ("miniimagenet", 5, 1): {"steps": 50_000, "tasks_per_step": 8, "learning_rate": 2.5e-4},
}
_OTHERWISE: dict[str, Any] = {"steps": 80_000, "tasks_per_step": 16, "learning_rate": 1e-4, "schedule": "constant"}
_END_TO_END: dict[str, dict[str, Any]] = {
    "quick": {"steps": 300, "tasks_per_step": 4, "warmup_steps": 20},
    "cpu": {"steps": 8_000, "tasks_per_step": 8, "warmup_steps": 200},
}
_ON_FEATURES: dict[str, dict[str, Any]] = {
    "quick": {"steps": 500, "tasks_per_step": 8, "warmup_steps": 20},
    "cpu": {"steps": 4_000, "tasks_per_step": 8, "warmup_steps": 200},
}
CPU_RATE = {"learning_rate": 1e-3, "gradient_clip": 10.0}


def fewshot_config(
    task: str,
    model: str,
    preset: str = "cpu",
    way: int = 5,
    shot: int = 1,
    features: str | None = None,
    data: DataConfig = NO_DATA,
    queries: int | None = None,
    architecture: dict[str, Any] | None = None,
    **changes: Any,
) -> RunConfig:
    """The configuration of a preset for episodes of a task, with some settings changed.

    `features` names a pretrained extractor: the model is then trained on its cached features, otherwise from images.

    >>> config = fewshot_config("miniimagenet", "nvdp", "paper", way=5, shot=1)
    >>> config.model.extractor, config.tasks_per_step, config.learning_rate, config.objective
    ('conv5', 8, 0.00025, 'query-variational-prior')
    """
    if task not in FEWSHOT_TASKS:
        raise unknown_name("task of classification", task, FEWSHOT_TASKS)
    if preset not in FEWSHOT_PRESETS:
        raise unknown_name("preset", preset, FEWSHOT_PRESETS)
    if queries is None:
        queries = QUERIES[preset] if features is None else QUERIES["paper"]
    regime = "end-to-end" if features is None else "features"
    episodes = EpisodeConfig(way, shot, queries, regime, features)
    settings = _inputs(task, data, episodes) | _inner_loop(model, task, way)
    if model == "nvdp" and preset != "paper":
        settings |= NVDP_QUICK_START
    config = FewShotConfig(model, way, **(settings | (architecture or {})))
    check_serves(config)
    classifier = model_spec(model).classifier
    assert classifier is not None
    run = RunConfig(
        task=task,
        model=config,
        preset=preset,
        objective=classifier.objective,
        kl=NVDP_FEWSHOT_KL if model == "nvdp" else KLScale("elbo", 1.0),
        data=data,
        episodes=episodes,
        **_training(task, preset, way, shot, features is not None),
    )
    return replace(run, **changes)


def _training(task: str, preset: str, way: int, shot: int, on_features: bool) -> dict[str, Any]:
    if preset == "paper":
        return _OTHERWISE | _PAPER.get((task, way, shot), {})
    return (_ON_FEATURES if on_features else _END_TO_END)[preset] | CPU_RATE


def _inputs(task: str, data: DataConfig, episodes: EpisodeConfig) -> dict[str, Any]:
    """What the model is given: images of the task's own shape, or the features of an extractor for such images."""
    source = class_source(task, data)
    extractor = "conv5" if source.size >= CONV5_SIZE else "conv4"
    features = EXTRACTORS[extractor].features(source.size)
    if episodes.features is not None:
        return {"extractor": "none", "features": features}
    return {"extractor": extractor, "channels": source.channels, "size": source.size, "features": features}


def _inner_loop(model: str, task: str, way: int) -> dict[str, Any]:
    """Steps and rates of adaptation by gradients, as in the papers of these models."""
    if model not in GRADIENT_MODELS:
        return {}
    if model == "maml" and task == "omniglot-fewshot" and way <= 5:
        return {"inner_steps": 1, "inner_rate": 0.4}
    return {"inner_steps": 5, "inner_rate": 0.1 if task == "omniglot-fewshot" else 0.01}
