"""The models that are served, by name: pretrained ones, run folders and the exact GP. Requests never name a path."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float

from nvdp.data import gp
from nvdp.data.registry import IMAGE_TASKS, image_size
from nvdp.errors import unknown_name
from nvdp.loading import find_run, pretrained_names
from nvdp.models.base import MetaModel
from nvdp.posteriors import DropoutPosterior
from nvdp.training.config import RunConfig
from nvdp.training.run_folder import load_any_run, load_run
from nvdp.web.answers import Answer
from nvdp.web.exact_gp import ExactGP
from nvdp.web.limits import MOST_CONTEXT
from nvdp.web.schemas import ModelEntry

DOMAINS = {"gp": gp.DOMAIN, "trig": (-math.pi, math.pi)}
PICTURES = (0.0, 1.0)


@runtime_checkable
class Served(Protocol):
    """What the server asks of a model."""

    @property
    def entry(self) -> ModelEntry:
        """How it presents itself."""
        ...

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


class ServedModel:
    """A trained model under the name that requests give it."""

    def __init__(self, name: str, config: RunConfig, model: MetaModel) -> None:
        pictures = config.task in IMAGE_TASKS
        widths = model.config.x_dim, model.config.y_dim
        page = {(1, 1): "functions", (2, 1): "images" if pictures else None}.get(widths)
        self.model = model
        self.entry = ModelEntry(
            name=name,
            label=_label(name, model.config.name, config.task),
            page=page,
            model=model.config.name,
            task=config.task,
            x_dim=widths[0],
            y_dim=widths[1],
            x_range=PICTURES if pictures else DOMAINS.get(config.task, gp.DOMAIN),
            image_size=image_size(config.task, config.data) if pictures else None,
            most_context=MOST_CONTEXT,
            has_rates=model.config.name == "nvdp",
        )

    @torch.no_grad()
    def answer(
        self,
        x: Float[np.ndarray, "context x"],
        y: Float[np.ndarray, "context y"],
        query: Float[np.ndarray, "query x"],
        samples: int,
        seed: int,
    ) -> Answer:
        """``model.adapt(x, y).predict(query, samples, seed)``."""
        posterior = self.model.adapt(x, y)
        prediction = posterior.predict(query, samples, seed)
        rates = posterior.rates if isinstance(posterior, DropoutPosterior) else None
        functions = prediction.functions if samples else prediction.functions[:0]
        mean, std, drawn = (part.double().numpy() for part in (prediction.mean, prediction.std, functions))
        return Answer(mean, std, drawn, rates)


def _label(name: str, model: str, task: str) -> str:
    if name == model:
        return model.upper()
    return f"{model.upper()} · {'pretrained' if name == task else name}"


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
        config, model, _ = load_run(path) if isinstance(folder, Path) else load_any_run(path)
        if not isinstance(model, MetaModel):  # a pretrained classifier: no page shows it
            continue
        name = _free_name(path.resolve().name, served)
        served[name] = ServedModel(name, config, model)
    served[ExactGP.entry.name] = ExactGP()
    return served


def _free_name(name: str, taken: dict[str, Served]) -> str:
    reserved = {*taken, ExactGP.entry.name}
    number = 2
    free = name
    while free in reserved:
        free, number = f"{name}-{number}", number + 1
    return free
