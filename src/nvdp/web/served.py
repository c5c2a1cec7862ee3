"""The models that are served, by name: pretrained ones, run folders and the exact GP. Requests never name a path."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from nvdp.errors import unknown_name
from nvdp.images.classify import PictureClassifier
from nvdp.loading import find_run, load, pretrained_names
from nvdp.posteriors.prediction import ClassPrediction
from nvdp.training.config import RunConfig
from nvdp.training.run_folder import CONFIG
from nvdp.web.answers import Answer
from nvdp.web.exact_gp import ExactGP
from nvdp.web.schemas import ModelEntry
from nvdp.web.served_classifier import ServedClassifier
from nvdp.web.served_model import ServedModel


@runtime_checkable
class Served(Protocol):
    """A model under its name."""

    @property
    def entry(self) -> ModelEntry:
        """How it presents itself."""
        ...


@runtime_checkable
class Predicts(Served, Protocol):
    """A model of functions: what /api/adapt and /api/suggest ask."""

    def answer(
        self,
        x: Float[np.ndarray, "context x"],
        y: Float[np.ndarray, "context y"],
        query: Float[np.ndarray, "query x"],
        samples: int,
        seed: int,
    ) -> Answer:
        """Adapt to the context, predict at the query."""
        ...


@runtime_checkable
class Classifies(Served, Protocol):
    """A model of classes: what /api/classify asks."""

    def classify(
        self,
        support: Float[np.ndarray, "support pixel"],
        labels: Int[np.ndarray, " support"],
        query: Float[np.ndarray, "query pixel"],
        samples: int,
        seed: int,
    ) -> ClassPrediction:
        """Adapt to the support, name the query."""
        ...


def served_models(runs: Sequence[Path] = ()) -> dict[str, Served]:
    """Run folders first, then pretrained models and the exact GP; a folder's name may be that of another.

    >>> list(served_models())[-1]
    'exact-gp'
    """
    served: dict[str, Served] = {}
    folders: list[str | Path] = [*runs, *pretrained_names()]
    for folder in folders:
        path = find_run(folder)
        if not path.is_dir():
            raise unknown_name("folder or pretrained model", str(folder), pretrained_names())
        name = _free_name(path.resolve().name, served)
        served[name] = _load(name, path, pretrained=isinstance(folder, str))
    served[ExactGP.entry.name] = ExactGP()
    return served


def _load(name: str, folder: Path, pretrained: bool) -> Served:
    config = RunConfig.load(folder / CONFIG)
    if config.episodes is not None:
        return ServedClassifier(name, config.task, PictureClassifier.load(folder), pretrained)
    return ServedModel(name, load(folder), pretrained)


def _free_name(name: str, taken: dict[str, Served]) -> str:
    reserved = {*taken, ExactGP.entry.name}
    number = 2
    free = name
    while free in reserved:
        free, number = f"{name}-{number}", number + 1
    return free
