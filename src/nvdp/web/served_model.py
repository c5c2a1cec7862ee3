"""A regression model that is served: asked in the units of its data, answered in them."""

import math

import numpy as np
import torch
from jaxtyping import Float

from nvdp.data import gp
from nvdp.data.registry import IMAGE_TASKS, image_size
from nvdp.loading import FittedModel
from nvdp.models.nvdp import NVDP
from nvdp.posteriors.dropout import DropoutPosterior
from nvdp.web.answers import DECIMALS, Answer
from nvdp.web.limits import MAX_CONTEXT
from nvdp.web.schemas import ModelEntry, TableColumns
from nvdp.web.units import check_reach

DOMAINS = {"gp": gp.DOMAIN, "trig": (-math.pi, math.pi)}
PICTURES = (0.0, 1.0)


class ServedModel:
    """A trained model under the name that requests give it."""

    def __init__(self, name: str, fitted: FittedModel, pretrained: bool = False) -> None:
        model, config, scale = fitted.model, fitted.config, fitted.scale
        self.model, self.scale = model, scale
        # A table's unit may be small: decimals are counted from its spread.
        self.decimals = DECIMALS + max(0, math.ceil(-math.log10(min(scale.y_spread))))
        self.entry = ModelEntry(
            name=name,
            label=label(name, model.config.name, pretrained),
            page=_page(fitted),
            model=model.config.name,
            task=config.task,
            x_dim=model.config.x_dim,
            y_dim=model.config.y_dim,
            x_range=_range(fitted),
            image_size=image_size(config.task, config.data) if config.task in IMAGE_TASKS else None,
            most_context=MAX_CONTEXT,
            has_rates=isinstance(model, NVDP),
            pretrained=pretrained,
            columns=None if (c := fitted.columns) is None else TableColumns(task=c.task, x=list(c.x), y=list(c.y)),
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
        """``model.adapt(x, y).predict(query)`` and sampled functions, in the units of the data."""
        scale = self.scale
        check_reach("x", x, scale.x_centre, scale.x_spread)
        check_reach("y", y, scale.y_centre, scale.y_spread)
        check_reach("query", query, scale.x_centre, scale.x_spread)
        posterior = self.model.adapt(scale.x_in(x), scale.y_in(y))
        at = scale.x_in(query)
        points = scale.y_out(posterior.predict(at))
        functions = scale.y_out(posterior.predict(at, samples, seed)).functions if samples else points.functions[:0]
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


def _page(fitted: FittedModel) -> str | None:
    x_dim, y_dim = fitted.model.config.x_dim, fitted.model.config.y_dim
    if fitted.columns is not None:
        return "data" if x_dim == 1 else None
    if fitted.config.task in IMAGE_TASKS:
        return "images" if (x_dim, y_dim) == (2, 1) else None
    return "functions" if (x_dim, y_dim) == (1, 1) and fitted.config.task in DOMAINS else None


def _range(fitted: FittedModel) -> tuple[float, float]:
    if fitted.config.task in IMAGE_TASKS:
        return PICTURES
    bounds = fitted.scale.x_low[0], fitted.scale.x_high[0]
    return bounds if np.isfinite(bounds).all() else DOMAINS.get(fitted.config.task, gp.DOMAIN)
