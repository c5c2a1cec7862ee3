"""Recipes for tasks of a table: how large a model is, and what few tasks may need so that none is learned by heart."""

from dataclasses import dataclass, field, replace
from typing import Any

from nvdp.data.frames import Augmentation, FrameTasks
from nvdp.models.config import ModelConfig
from nvdp.models.registry import model_spec
from nvdp.objectives import KLScale
from nvdp.training.config import RunConfig
from nvdp.training.early_stopping import Candidate
from nvdp.training.presets import DEFAULT_NVDP_KL, DROPOUT_MODELS

LOWEST_STD = 0.02  # σ of a prediction in units of all outputs: tables are often less noisy than the paper's tasks
SMALL, MEDIUM = 200, 2_000  # tasks from which on a model is made wider


@dataclass(frozen=True)
class Recipe:
    """What keeps few tasks from being learned by heart: how far they are moved, and a smaller or better-told model."""

    augmentation: Augmentation = field(default_factory=Augmentation)
    model: dict[str, Any] = field(default_factory=dict)  # settings that differ
    kl: float = 1.0  # times the usual weight, of a dropout posterior


AS_THEY_ARE = "as they are"
MILD, STRONG = Augmentation(jitter=0.03, shift=0.1, stretch=0.1), Augmentation(jitter=0.05, shift=0.4, stretch=0.3)
NARROW = {"decoder.width": 32, "encoder.size": 32, "rates.width": 32, "decoder.latent": 16}
FEW = {  # which of them, the held-out tasks say
    "jittered": Recipe(MILD),
    "jittered, decoder told r": Recipe(MILD, {"decoder.sees": "x,r"}),
    "moved, narrow": Recipe(STRONG, NARROW, kl=10.0),
}
MANY = {AS_THEY_ARE: Recipe()}


def model_for(name: str, x_dim: int, y_dim: int, tasks: int) -> ModelConfig:
    """An architecture whose size goes with the number of tasks.

    >>> model_for("nvdp", 1, 1, tasks=40).width, model_for("nvdp", 1, 1, tasks=5_000).width
    (48, 128)
    """
    width = 48 if tasks < SMALL else 64 if tasks < MEDIUM else 128
    layers = 3 if tasks < MEDIUM else 4
    return ModelConfig(name, x_dim, y_dim).updated(
        {
            "likelihood.min_std": LOWEST_STD,
            "decoder.width": width,
            "decoder.layers": layers,
            "encoder.size": width,
            "encoder.layers": layers,
            "rates.width": width,
            "rates.layers": 2,
            "decoder.latent": width // 2,
            "encoder.task_norm": name in DROPOUT_MODELS,
        }
    )


def fit_config(model: ModelConfig, steps: int, seed: int) -> RunConfig:
    """The configuration of a fit, which is a run on the task csv."""
    return RunConfig(
        task="csv",
        model=model,
        objective=model_spec(model.name).objective,
        kl=DEFAULT_NVDP_KL if model.name in DROPOUT_MODELS else KLScale("elbo", 1.0),
        steps=steps,
        learning_rate=2e-3 if model.decoder.width < 128 else 1e-3,
        warmup_steps=min(100, steps // 10),
        gradient_clip=1.0,
        seed=seed,
    )


def candidates(name: str, training: FrameTasks, tasks: int, steps: int, seed: int) -> list[Candidate]:
    """The ways to fit so many tasks: one, or with few of them several to choose from."""
    model = model_for(name, training.x_dim, training.y_dim, tasks)
    ways = []
    for way, recipe in (FEW if tasks < SMALL else MANY).items():
        if "decoder.sees" in recipe.model and name != "nvdp":
            continue  # the decoders of the others see r anyway
        config = fit_config(model.updated(recipe.model), steps, seed)
        if name in DROPOUT_MODELS:
            config = replace(config, kl=replace(config.kl, weight=config.kl.weight * recipe.kl))
        ways.append(Candidate(way, config, replace(training, augmentation=recipe.augmentation)))
    return ways
