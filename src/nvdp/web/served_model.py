"""A regression model that is served: asked in the units of its data, answered in them."""

import math

import numpy as np
import torch
from jaxtyping import Float

from nvdp.data import gp
from nvdp.data.registry import IMAGE_TASKS, image_size
from nvdp.loading import Predictor
from nvdp.models.nvdp import NVDP
from nvdp.posteriors.dropout import DropoutPosterior
from nvdp.web.answers import DECIMALS, Answer
from nvdp.web.limits import MAX_CONTEXT
from nvdp.web.schemas import ModelEntry, TableColumns
from nvdp.web.units import check_reach

PICTURES = (0.0, 1.0)
DOMAINS = {"gp": gp.DOMAIN, "trig": (-math.pi, math.pi)}


class ServedModel:
    """A trained model under the name that requests give it."""

    def __init__(self, name: str, predictor: Predictor, pretrained: bool = False) -> None:
        model, config = predictor.model, predictor.config
        assert config is not None
        self.predictor = predictor
        # A table's unit may be small: decimals are counted from its spread.
        self.decimals = DECIMALS + max(0, math.ceil(-math.log10(min(predictor.units.y_spread))))
        self.entry = ModelEntry(
            name=name,
            label=label(name, model.config.name, pretrained),
            page=_page(predictor),
            model=model.config.name,
            task=config.task,
            x_dim=model.config.x_dim,
            y_dim=model.config.y_dim,
            x_range=_range(predictor),
            image_size=image_size(config.task, config.data) if config.task in IMAGE_TASKS else None,
            most_context=MAX_CONTEXT,
            has_rates=isinstance(model, NVDP),
            pretrained=pretrained,
            columns=None if (c := predictor.columns) is None else TableColumns(task=c.task, x=list(c.x), y=list(c.y)),
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
        """``predictor.adapt(x, y).predict(query)`` and sampled functions, in the units of the data."""
        units = self.predictor.units
        check_reach("x", x, units.x_centre, units.x_spread)
        check_reach("y", y, units.y_centre, units.y_spread)
        check_reach("query", query, units.x_centre, units.x_spread)
        asked = self.predictor.adapt(x, y)
        posterior = getattr(asked, "standardised", asked)
        points = asked.predict(query)
        functions = asked.predict(query, samples, seed).functions if samples else points.functions[:0]
        rates = posterior.rates if isinstance(posterior, DropoutPosterior) else None
        mean, std, drawn = (part.numpy() for part in (points.mean, points.std, functions))
        return Answer(mean, std, drawn, rates, self.decimals)


def label(name: str, model: str, pretrained: bool) -> str:
    """What a list of models shows.

    >>> label("gp", "nvdp", pretrained=True), label("runs-3", "cnp", pretrained=False), label("cnp", "cnp", False)
    ('NVDP · pretrained', 'CNP · runs-3', 'CNP')
    """
    if name == model:
        return model.upper()
    return f"{model.upper()} · {'pretrained' if pretrained else name}"


def _page(predictor: Predictor) -> str | None:
    assert predictor.config is not None
    x_dim, y_dim = predictor.model.config.x_dim, predictor.model.config.y_dim
    if predictor.columns is not None:
        return "data" if x_dim == 1 else None
    if predictor.config.task in IMAGE_TASKS:
        return "images" if (x_dim, y_dim) == (2, 1) else None
    return "functions" if (x_dim, y_dim) == (1, 1) and predictor.config.task in DOMAINS else None


def _range(predictor: Predictor) -> tuple[float, float]:
    bounds = predictor.units.x_low[0], predictor.units.x_high[0]
    return bounds if np.isfinite(bounds).all() else gp.DOMAIN
