"""A run's whole configuration as one frozen record, its presets, and its JSON form."""

from dataclasses import replace
from typing import Any

from nvdp.data.episodes import FEWSHOT_TASKS, EpisodeConfig, class_source
from nvdp.data.images import ImageTasks
from nvdp.data.registry import IMAGE_TASKS, task_source
from nvdp.data.source import NO_DATA, DataConfig
from nvdp.errors import unknown_name
from nvdp.models.config import GRADIENT_MODELS, ClassifierConfig, ModelConfig
from nvdp.models.registry import check_serves, model_spec
from nvdp.nn.extractors import EXTRACTORS
from nvdp.objectives import KLScale
from nvdp.training.config import RunConfig
from nvdp.training.pretrain import CONV5_SIZE

TOY: dict[str, Any] = {
    "decoder.width": 12,
    "decoder.layers": 2,
    "encoder.size": 12,
    "rates.width": 12,
    "decoder.latent": 12,
    "rates.activation": "mish",
    "decoder.sees": "x,r",
}
DROPOUT_MODELS = ("nvdp", "nvdp-attentive", "nvdp-conv")
# Where targets read the context themselves, encoder and rate networks have little left to say.
_READING: dict[str, Any] = {"decoder.layers": 2, "decoder.activation": "silu", "encoder.layers": 3, "rates.layers": 2}
READING: dict[str, dict[str, Any]] = {
    "nvdp-attentive": _READING,
    "anp": _READING | {"attention.by_distance": False},
    "nvdp-conv": _READING,
    "convcnp": _READING,
}
# A model that sees one r of its context learns sooner with these: `nvdp reproduce recipes`, `quarter`.
_RESIDUAL: dict[str, Any] = {
    "encoder.residual": True,
    "rates.residual": True,
    "encoder.activation": "silu",
    "rates.activation": "silu",
}
_SHALLOW: dict[str, Any] = {"decoder.layers": 3, "encoder.layers": 3, "rates.layers": 2}  # waves leave less to do
WAVES: dict[str, Any] = _RESIDUAL | _SHALLOW | {"inputs.fourier": 8, "encoder.aggregation": "bayesian"}
CELEBA: dict[str, Any] = {"encoder.size": 1_024}
NARROW: dict[str, Any] = {"encoder.width": 128}  # before a wide r: a step is far cheaper, for the presets of a CPU
IMAGES: dict[str, Any] = {
    "inputs.x_centre": 0.5,
    "inputs.x_scale": 4.0,
    "inputs.y_centre": 0.5,
    "inputs.y_scale": 2.0,
}  # [0, 1] → [−2, 2], [−1, 1]
IMAGE_LEARNING_RATE, EPOCHS = 4e-4, 300
EPOCH_IMAGES = {
    "mnist": 50_000,
    "omniglot": 16_720,
    "celeba": 162_770,
    "images": 16_720,
}  # a folder's size is not known
_PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"steps": 2_000, "learning_rate": 1e-3, "warmup_steps": 100, "gradient_clip": 1.0},
    "cpu": {"steps": 36_000, "learning_rate": 1e-3, "warmup_steps": 500, "gradient_clip": 1.0},
    "paper": {"steps": 500_000, "learning_rate": 5e-4, "schedule": "constant"},
    "released": {"steps": 500_000, "learning_rate": 5e-4, "schedule": "constant"},
}
PRESETS = tuple(_PRESETS)
OWN_RECIPE = ("quick", "cpu")  # the others follow the paper or its code
NVDP_KL = {"released": KLScale("released", 1.4)}
RELEASED_IMAGE_KL = KLScale("released", 0.5)
DEFAULT_NVDP_KL = KLScale("elbo", 0.001)  # measured: `nvdp reproduce ablations`


def pixel_grid(size: int, scaled: bool) -> dict[str, Any]:
    """A grid with a cell for every pixel, and a kernel for a second dimension."""
    low, high = (-2.0, 2.0) if scaled else (0.0, 1.0)
    return {"convolution.low": low, "convolution.high": high, "convolution.cells": size, "convolution.kernel": 5}


def preset_config(
    task: str, model: str, preset: str, variance: str = "learned", data: DataConfig = NO_DATA, **changes: Any
) -> RunConfig:
    """The configuration of a preset for a task and model, with some settings changed.

    >>> preset_config("gp", "nvdp", "paper").steps
    500000
    >>> celeba = preset_config("celeba", "nvdp", "paper").model
    >>> celeba.x_dim, celeba.y_dim, celeba.encoder.size
    (2, 3, 1024)
    """
    if preset not in _PRESETS:
        raise unknown_name("preset", preset, _PRESETS)
    spec = model_spec(model)
    sooner = preset in OWN_RECIPE and task == "gp" and model not in READING
    source = task_source(task, data)
    architecture: dict[str, Any] = {"x_dim": source.x_dim, "y_dim": source.y_dim}
    architecture |= TOY if task == "trig" else CELEBA if task == "celeba" else {}
    architecture |= READING.get(model, {})
    if isinstance(source, ImageTasks) and "conv" in model:
        architecture |= pixel_grid(source.source.size, preset in OWN_RECIPE)
    if preset == "released":
        architecture["rates.bounds"] = "clip"
    if preset in OWN_RECIPE:
        architecture |= IMAGES if task in IMAGE_TASKS else {}
        architecture |= NARROW if task == "celeba" else {}
        architecture["encoder.task_norm"] = model in DROPOUT_MODELS and task != "trig"  # a CNP learns slower with it
        architecture["rates.norm"] = model == "nvdp" and task in IMAGE_TASKS  # on GP functions NVDP does
        architecture |= WAVES if sooner else {}
    training = dict(_PRESETS[preset])
    if sooner:
        training["optimizer"] = "nadam"
        if (model, preset) == ("nvdp", "quick"):
            training["learning_rate"] = 2e-3  # wins short runs; the longer, the less it matters
    kl = NVDP_KL.get(preset, DEFAULT_NVDP_KL)
    if task in IMAGE_TASKS and preset in ("paper", "released"):
        training |= {"learning_rate": IMAGE_LEARNING_RATE, "steps": EPOCHS * EPOCH_IMAGES[task] // 16}
        kl = RELEASED_IMAGE_KL if preset == "released" else kl
    if task == "trig" and preset in OWN_RECIPE:
        training["learning_rate"] = 3e-3  # a network of 12 units takes larger steps
    config = RunConfig(
        task=task,
        model=ModelConfig(model).updated({"likelihood.variance": variance, **architecture}),
        preset=preset,
        objective=spec.objective,
        kl=kl if model in DROPOUT_MODELS else KLScale("elbo", 1.0),
        data=data,
        **training,
    )
    return replace(config, **changes)


def shortened(config: RunConfig, steps: int) -> RunConfig:
    """A preset's configuration with another number of steps, of which at most a quarter warm up.

    >>> shortened(preset_config("gp", "nvdp", "cpu"), 100).warmup_steps
    25
    """
    return replace(config, steps=steps, warmup_steps=min(config.warmup_steps, steps // 4))


FEWSHOT_PRESETS = ("quick", "cpu", "paper")
QUERIES = {"quick": 5, "cpu": 5, "paper": 15}  # of a class; features cost so little that they take 15 at any budget
# The sum over all classes' weights is large where rates differ from the start: a weight of 0.001 can press them all to
# their floor, and the classifier stays at chance.
NVDP_FEWSHOT_KL = KLScale("elbo", 1e-5)
NVDP_QUICK_START = {"rates.sees": "contrast", "rates.path": "activations"}
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
    >>> config.model.extractor.name, config.tasks_per_step, config.learning_rate, config.objective
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
    config = ClassifierConfig(model, way).updated(settings | (architecture or {}))
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
        return {"extractor.name": "none", "extractor.features": features}
    return {
        "extractor.name": extractor,
        "extractor.channels": source.channels,
        "extractor.size": source.size,
        "extractor.features": features,
    }


def _inner_loop(model: str, task: str, way: int) -> dict[str, Any]:
    """Steps and rates of adaptation by gradients, as in the papers of these models."""
    if model not in GRADIENT_MODELS:
        return {}
    if model == "maml" and task == "omniglot-fewshot" and way <= 5:
        return {"gradient.steps": 1, "gradient.rate": 0.4}
    return {"gradient.steps": 5, "gradient.rate": 0.1 if task == "omniglot-fewshot" else 0.01}


WIDTH, META_WIDTH = 128, 64


def class_config(name: str, features: int, way: int, steps: int, seed: int) -> RunConfig:
    """The configuration of a fit of a classifier, which is a run on the task csv.

    >>> class_config("protonet", features=3, way=4, steps=10, seed=0).model.x_dim
    3
    """
    spec = model_spec(name)
    model = ClassifierConfig(name, max(2, way)).updated(
        {
            "extractor.name": "none",
            "extractor.features": features,
            "extractor.normalise": False,
            "decoder.width": WIDTH,
            "meta.width": META_WIDTH,
            "decoder.sees": "x,r",
        }
    )
    check_serves(model)
    assert spec.classifier is not None
    return RunConfig(
        task="csv",
        model=model,
        objective=spec.classifier.objective,
        kl=NVDP_FEWSHOT_KL if name == "nvdp" else KLScale("elbo", 1.0),
        steps=steps,
        tasks_per_step=8,
        learning_rate=2e-3,
        warmup_steps=min(50, steps // 10),
        gradient_clip=10.0,
        seed=seed,
    )
