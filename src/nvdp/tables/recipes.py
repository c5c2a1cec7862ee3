"""The ways to fit a network to the tasks of a table: which model, on which tasks, how regularised."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nvdp.data.frames import Augmentation, FrameTasks
from nvdp.data.source import TaskSource
from nvdp.models.hierarchical_gp import HierarchicalGP
from nvdp.models.registry import model_spec
from nvdp.tables.prior import DrawnTasks
from nvdp.training.early_stopping import CHECKS, PATIENCE, Candidate
from nvdp.training.preset_rules import SMALL
from nvdp.training.presets import table_config

AUTO, AUTO_MODEL = "auto", "nvdp-attentive"


@dataclass(frozen=True)
class Recipe:
    """What keeps a model from overfitting few tasks: drawn tasks, augmentation, a smaller or better informed model."""

    drawn: bool = False  # tasks of the prior are mixed with the real ones
    residuals: bool = False  # the network predicts residuals of the prior
    augmentation: Augmentation = field(default_factory=Augmentation)
    model: dict[str, Any] = field(default_factory=dict)  # settings that differ
    kl: float = 1.0  # times the usual weight, of a dropout posterior


MILD, STRONG = Augmentation(jitter=0.03, shift=0.1, stretch=0.1), Augmentation(jitter=0.05, shift=0.4, stretch=0.3)
NARROW = {"decoder.width": 32, "encoder.size": 32, "rates.width": 32, "decoder.latent": 16}
# Tasks of a table are short: a small reader takes twice the steps in the same time.
SMALL_READER = {
    "attention.width": 32,
    "attention.blocks": 2,
    "attention.heads": 4,
    "likelihood.shared_std": False,  # the noise differs from task to task
}
AROUND, DRAWN = "around the hierarchical GP", "drawn and real tasks"
RECIPES = {
    AROUND: Recipe(drawn=True, residuals=True),
    DRAWN: Recipe(drawn=True),
    "jittered": Recipe(augmentation=MILD),
    "jittered, decoder told r": Recipe(augmentation=MILD, model={"decoder.sees": "x,r"}),
    "moved, narrow": Recipe(augmentation=STRONG, model=NARROW, kl=10.0),
    "as they are": Recipe(),
}
FEW = ("jittered", "jittered, decoder told r", "moved, narrow")  # of a model that was named
MANY = ("as they are",)
AUTO_WAYS = (("nvdp", AROUND), ("nvdp-attentive", AROUND), ("nvdp-attentive", DRAWN))
AUTO_WAYS_OF_MANY = (("nvdp", AROUND), ("nvdp-attentive", AROUND), ("nvdp-attentive", "as they are"))


def drawn_share(tasks: int) -> float:
    """The share of drawn tasks in a batch: the more real tasks there are, the smaller.

    >>> [round(drawn_share(tasks), 2) for tasks in (10, 100, 1_000, 100_000)]
    [0.8, 0.7, 0.45, 0.1]
    """
    return float(np.clip(1.2 - 0.25 * np.log10(tasks), 0.1, 0.8))


def candidates(
    name: str,
    training: FrameTasks,
    tasks: int,
    steps: int,
    seed: int,
    prior: HierarchicalGP | None = None,
    around: bool = True,
) -> list[Candidate]:
    """The ways to fit so many tasks, to choose from.

    Args:
        name: A model, or auto for a few of them.
        training: The training tasks, standardised.
        tasks: How many tasks decide the size of the model.
        steps: Most steps of all candidates together.
        seed: Of weights, tasks and noise.
        prior: What tasks are drawn from; without one there are only real tasks.
        around: Whether a network may predict residuals of the prior, which is then a part of the prediction.

    Returns:
        Named configurations with their tasks.
    """
    few, auto = tasks < SMALL, name == AUTO
    if auto and prior is not None and around:
        pairs: Sequence[tuple[str, str]] = AUTO_WAYS if few else AUTO_WAYS_OF_MANY
    else:
        named, plain = AUTO_MODEL if auto else name, FEW if few else MANY
        ways_of_prior = () if prior is None else (AROUND, DRAWN) if around else (DRAWN,)
        pairs = [(named, way) for way in (*ways_of_prior, *plain)]
    if any(bool(y.isnan().any()) for _, y in training.sets):
        pairs = [(model, way) for model, way in pairs if RECIPES[way].residuals]  # a process fills in missing outputs
    ways = []
    for model, way in pairs:
        recipe = RECIPES[way]
        if "decoder.sees" in recipe.model and model != "nvdp":
            continue  # the decoders of the others see r anyway
        source: TaskSource = replace(training, augmentation=recipe.augmentation)
        patience = PATIENCE
        if recipe.drawn and prior is not None:
            source = DrawnTasks(training, prior, drawn_share(len(training.sets)), recipe.residuals)
            patience = CHECKS  # drawn tasks never end, so nothing is overfitted
        settings = recipe.model | (SMALL_READER if auto and model_spec(model).reader == "attention" else {})
        config = table_config(model, source.x_dim, source.y_dim, tasks, steps, seed)
        config = replace(config, model=config.model.updated(settings))
        if model_spec(model).dropout:
            config = replace(config, kl=replace(config.kl, weight=config.kl.weight * recipe.kl))
        ways.append(Candidate(f"{model}, {way}" if auto else way, config, source, patience))
    return ways
