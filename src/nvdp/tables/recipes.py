"""Ways to fit a table: how tasks are augmented and the model is made smaller, so that few tasks are not overfitted."""

from dataclasses import dataclass, field, replace
from typing import Any

from nvdp.data.frames import Augmentation, FrameTasks
from nvdp.models.registry import model_spec
from nvdp.training.early_stopping import Candidate
from nvdp.training.presets import SMALL, table_config


@dataclass(frozen=True)
class Recipe:
    """What keeps a model from overfitting few tasks: augmentation, and a smaller or better informed model."""

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


def candidates(name: str, training: FrameTasks, tasks: int, steps: int, seed: int) -> list[Candidate]:
    """The ways to fit so many tasks: one, or with few of them several to choose from."""
    base = table_config(name, training.x_dim, training.y_dim, tasks, steps, seed)
    ways = []
    for way, recipe in (FEW if tasks < SMALL else MANY).items():
        if "decoder.sees" in recipe.model and name != "nvdp":
            continue  # the decoders of the others see r anyway
        config = replace(base, model=base.model.updated(recipe.model))
        if model_spec(name).dropout:
            config = replace(config, kl=replace(config.kl, weight=config.kl.weight * recipe.kl))
        ways.append(Candidate(way, config, replace(training, augmentation=recipe.augmentation)))
    return ways
