"""The models behind the page, by name: run folders, pretrained models and the exact GP. Requests never name a path.

Each asks ``predictor.adapt(context)`` and its posterior, as a user of the library does, and gives the same numbers:
`predict(x)` for mean and standard deviation, `predict(x, samples)` for sampled functions, `suggest` for the next point.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from nvdp.cards import card_lines
from nvdp.data import gp
from nvdp.data.registry import IMAGE_TASKS, image_size
from nvdp.errors import InputError
from nvdp.evaluation.inferred import InferredGP
from nvdp.images.classify import PictureClassifier
from nvdp.loading import Predictor, find_run, load, pretrained_names
from nvdp.models.registry import model_spec
from nvdp.nn.rates import LayerRates
from nvdp.posteriors.adjusted import AdjustedPosterior
from nvdp.posteriors.dropout import DropoutPosterior
from nvdp.units import ContextUnits, PosteriorInUnits, Units
from nvdp.web.limits import (
    DEAR_PAIRS,
    DEAR_SAMPLED,
    MAX_CONTEXT,
    MAX_CONTEXT_EXACT,
    MAX_DISTANCE,
    MAX_PIXELS,
    MAX_QUERY,
    MAX_QUERY_EXACT,
    MAX_RATE_CELLS,
    MAX_SUPPORT,
)
from nvdp.web.schemas import ModelEntry, TableColumns

FUNCTIONS, CHARACTERS = ("general", "gp", "trig"), "omniglot-fewshot"  # tasks that have a page of their own
EXACT_GP = "exact-gp"
EXACT_CELLS = (8, 6)  # of its grid over the length scale and the signal scale: answers while a pointer moves
COMPARES_ALL = (EXACT_GP, "nvdp-attentive", "anp")  # models that compare every query point with every context point
DECIMALS, RATE_DECIMALS = 6, 4
PURPOSES = {  # of the models that come with the package
    "general": "General: any data",
    "gp": "Convolutional NVDP: smooth functions",
    "gp-rates": "NVDP by rates alone: smooth functions",
    "gp-nvdp": "Paper's NVDP: smooth functions",
    "mnist": "Convolutional NVDP: digits",
    "omniglot": "NVDP: characters",
}


class ServedModel:
    """A regression model under the name that requests give it."""

    def __init__(
        self, entry: ModelEntry, predictor: Predictor | InferredGP, units: Units, max_query: int = MAX_QUERY
    ) -> None:
        self.entry, self.predictor, self.units, self.max_query = entry, predictor, units, max_query
        # The unit of a table may be small: decimals are counted from its spread.
        self.decimals = DECIMALS + max(0, math.ceil(-math.log10(min(units.y_spread))))

    @classmethod
    def of(cls, name: str, predictor: Predictor, pretrained: bool = False) -> "ServedModel":
        """A loaded model.

        Args:
            name: What requests call it.
            predictor: The model, from `nvdp.load`.
            pretrained: Whether it comes with the package.
        """
        assert predictor.config is not None  # of whatever is loaded
        shape, task, columns = predictor.model.config, predictor.config.task, predictor.columns
        units, widths = predictor.units, predictor.widths
        if isinstance(units, ContextUnits):  # its page has one input, in any units
            units = Units.identity(1, widths.y)
        bounds = units.x_low[0], units.x_high[0]
        entry = ModelEntry(
            name=name,
            label=label(name, shape.name, pretrained),
            page=_page(predictor),
            model=shape.name,
            task=task,
            x_dim=widths.x[0],
            y_dim=shape.y_dim,
            x_range=bounds if np.isfinite(bounds).all() else gp.DOMAIN,
            y_centre=list(predictor.units.y_centre),
            y_spread=list(predictor.units.y_spread),
            image_size=image_size(task, predictor.config.data) if task in IMAGE_TASKS else None,
            most_context=MAX_CONTEXT,
            has_rates=model_spec(shape.name).dropout,
            pretrained=pretrained,
            columns=None if columns is None else TableColumns(task=columns.task, x=list(columns.x), y=list(columns.y)),
            card=card_lines(predictor.card),
        )
        return cls(entry, predictor, units)

    @classmethod
    def exact_gp(cls) -> "ServedModel":
        """The exact posterior of the GP tasks."""
        entry = ModelEntry(
            name=EXACT_GP,
            label="Exact GP: smooth functions",
            page="functions",
            model=EXACT_GP,
            task="gp",
            x_dim=1,
            y_dim=1,
            x_range=gp.DOMAIN,
            most_context=MAX_CONTEXT_EXACT,
            has_rates=False,
        )
        return cls(entry, InferredGP(cells=EXACT_CELLS), Units.identity(1, 1), MAX_QUERY_EXACT)

    def is_dear(self, context: int, query: int, samples: int) -> bool:
        """Whether an answer takes more than some hundredths of a second, so that others should go first."""
        pairs = context * query if self.entry.model in COMPARES_ALL else 0
        return samples * query > DEAR_SAMPLED or max(pairs, query * query // 2 if pairs else 0) > DEAR_PAIRS

    @torch.no_grad()
    def answer(
        self,
        x: Float[np.ndarray, "context x"],
        y: Float[np.ndarray, "context y"],
        query: Float[np.ndarray, "query x"],
        samples: int,
        seed: int,
    ) -> dict[str, Any]:
        """The answer of /api/adapt: see `AdaptAnswer`.

        Args:
            x: Inputs of the context.
            y: Its outputs.
            query: Where to predict.
            samples: How many functions to draw.
            seed: Of those functions.
        """
        posterior = self._adapt(x, y, query)
        prediction = posterior.predict(query)
        functions = posterior.predict(query, samples, seed).functions if samples else prediction.functions[:0]
        known = self.predictor.units if isinstance(self.predictor, Predictor) else self.units
        asked = posterior.units if isinstance(posterior, PosteriorInUnits) else known
        notes = [note for note in (known.far(x, y), asked.far(query)) if note]
        inner = posterior.standardised if isinstance(posterior, PosteriorInUnits) else posterior
        inner = inner.network if isinstance(inner, AdjustedPosterior) else inner
        return {
            "mean": self._rounded(prediction.mean),
            "std": self._rounded(prediction.std),
            "samples": self._rounded(functions),
            "rates": [layer_heat(layer) for layer in inner.rates] if isinstance(inner, DropoutPosterior) else None,
        } | ({"note": "; ".join(notes)} if notes else {})

    @torch.no_grad()
    def suggest(
        self,
        x: Float[np.ndarray, "context x"],
        y: Float[np.ndarray, "context y"],
        query: Float[np.ndarray, "query x"],
        seed: int,
    ) -> dict[str, Any]:
        """The answer of /api/suggest: the candidate that ``posterior.suggest`` puts first."""
        posterior = self._adapt(x, y, query)
        index = int(posterior.suggest(query, seed=seed)[0])
        prediction = posterior.predict(query[[index]])
        mean, std = self._rounded(prediction.mean)[0], self._rounded(prediction.std)[0]
        return {"index": index, "x": query[index].tolist(), "mean": mean, "std": std}

    def _adapt(self, x: np.ndarray, y: np.ndarray, query: np.ndarray) -> Any:
        if len(query) > self.max_query:
            raise InputError(f"query holds {len(query)} points; '{self.entry.name}' takes at most {self.max_query}")
        units = self.units
        if isinstance(self.predictor, Predictor) and isinstance(self.predictor.units, ContextUnits):
            return self.predictor.adapt(x, y)  # any units
        for name, values, centre, spread, logs in (
            ("x", x, units.x_centre, units.x_spread, units.x_log),
            ("y", y, units.y_centre, units.y_spread, units.y_log),
            ("query", query, units.x_centre, units.x_spread, units.x_log),
        ):
            check_distance(name, values, np.array(centre), np.array(spread), logs)
        return self.predictor.adapt(x, y)

    def _rounded(self, values: torch.Tensor) -> Any:
        if not values.isfinite().all():
            raise InputError("the prediction is not finite there; give x and y nearer to the data of training")
        return _rounded(values, self.decimals)


class ServedClassifier:
    """A few-shot classifier of pictures under the name that requests give it."""

    def __init__(self, name: str, task: str, classifier: PictureClassifier, pretrained: bool = False) -> None:
        config, pixels = classifier.model.config, classifier.channels * classifier.size**2
        if pixels > MAX_PIXELS:
            raise InputError(
                f"'{name}' classifies pictures of {pixels} numbers; the page serves those of at most {MAX_PIXELS}"
            )
        self.classifier = classifier
        self.entry = ModelEntry(
            name=name,
            label=label(name, config.name, pretrained),
            page="characters" if task == CHARACTERS else None,
            model=config.name,
            task=task,
            x_dim=pixels,
            y_dim=config.num_classes,
            x_range=(0.0, 1.0),
            image_size=classifier.size,
            most_context=MAX_SUPPORT,
            has_rates=model_spec(config.name).dropout,
            pretrained=pretrained,
            way=config.num_classes if model_spec(config.name).fixed_classes else None,
        )

    @torch.no_grad()
    def classify(
        self,
        support: Float[np.ndarray, "support pixel"],
        labels: Int[np.ndarray, " support"],
        query: Float[np.ndarray, "query pixel"],
        samples: int,
        seed: int,
    ) -> dict[str, Any]:
        """The answer of /api/classify: see `ClassifyAnswer`.

        Args:
            support: Labelled pictures.
            labels: Their classes, numbered from 0.
            query: Pictures to classify.
            samples: How many classifiers to draw.
            seed: Of those classifiers.
        """
        posterior = self.classifier.adapt(torch.from_numpy(support), torch.from_numpy(labels))
        x = self.classifier.inputs(torch.from_numpy(query))
        prediction = posterior.predict(x)
        classifiers = posterior.predict(x, samples, seed).functions if samples else prediction.functions[:0]
        if prediction.by_sample.isnan().any() or classifiers.isnan().any():
            raise InputError("the probabilities are not numbers; these pictures are too far from those of training")
        parts = {
            "probabilities": prediction.probabilities,
            "std": prediction.spread,
            "samples": classifiers,
            "entropy": prediction.entropy,
            "disagreement": prediction.disagreement,
        }
        return {name: _rounded(part, DECIMALS) for name, part in parts.items()}


Served = ServedModel | ServedClassifier


def served_models(runs: Sequence[Path] = ()) -> dict[str, Served]:
    """All models by the names that requests give them.

    Args:
        runs: Folders to serve beside the pretrained models.

    Returns:
        The runs first, then the pretrained models, then the exact GP. A name that is taken gets a number.

    >>> list(served_models())[-1]
    'exact-gp'
    """
    served: dict[str, Served] = {}
    for folder in runs:
        name = _free_name(find_run(folder).resolve().name, served)
        served[name] = _serve(name, find_run(folder), pretrained=False)
    for pretrained in pretrained_names():
        name = _free_name(pretrained, served)
        served[name] = _serve(name, find_run(pretrained), pretrained=True)
    return served | {EXACT_GP: ServedModel.exact_gp()}


def _serve(name: str, folder: Path, pretrained: bool) -> Served:
    predictor = load(folder)
    if predictor.kind == "regression":
        return ServedModel.of(name, predictor, pretrained)
    assert predictor.config is not None
    served = ServedClassifier(name, predictor.config.task, PictureClassifier.load(folder), pretrained)
    served.entry.card = card_lines(predictor.card)
    return served


def _free_name(name: str, taken: dict[str, Served]) -> str:
    free, number = name, 2
    while free in taken or free == EXACT_GP:
        free, number = f"{name}-{number}", number + 1
    return free


def label(name: str, model: str, pretrained: bool) -> str:
    """What a list of models shows.

    >>> label("gp-nvdp", "nvdp", pretrained=True), label("runs-3", "cnp", False), label("cnp", "cnp", False)
    ("Paper's NVDP: smooth functions", 'runs-3 (CNP)', 'CNP')
    """
    if pretrained and name in PURPOSES:
        return PURPOSES[name]
    return model.upper() if name == model else f"{name} ({model.upper()})"


def _page(predictor: Predictor) -> str | None:
    """Which page shows a regression model, if one can."""
    assert predictor.config is not None
    shape, task = (predictor.widths.x[0], predictor.widths.y), predictor.config.task
    if predictor.columns is not None:
        return "data" if shape[0] == 1 else None
    if task in IMAGE_TASKS:
        return "images" if shape == (2, 1) else None
    return "functions" if shape == (1, 1) and task in FUNCTIONS else None


def check_distance(
    name: str,
    values: Float[np.ndarray, "point column"],
    centre: Float[np.ndarray, " column"],
    spread: np.ndarray,
    logs: Sequence[bool] = (),
) -> None:
    """Refuse a number that is more than `MAX_DISTANCE` spreads from the centre: far outside any training.

    Centre and spread of columns that are taken by their logarithm (`logs`) are those of the logarithms.

    >>> check_distance("x", np.array([[5.0], [-20.0]]), np.array([10.0]), np.array([0.01]))
    Traceback (most recent call last):
    nvdp.errors.InputError: x[1][0] is -20; this model takes numbers from 0 to 20
    """
    low, high = centre - MAX_DISTANCE * spread, centre + MAX_DISTANCE * spread
    if any(logs):
        with np.errstate(over="ignore"):
            low, high = (np.where(logs, np.exp(end), end) for end in (low, high))
    outside = np.argwhere((values < low) | (values > high))
    if len(outside):
        row, column = outside[0]
        raise InputError(
            f"{name}[{row}][{column}] is {values[row, column]:g}; "
            f"this model takes numbers from {low[column]:g} to {high[column]:g}"
        )


def layer_heat(layer: LayerRates) -> dict[str, Any]:
    """P of one layer as a heat map of at most `MAX_RATE_CELLS` rows and columns.

    >>> from nvdp.nn.rates import RateBounds
    >>> layer = LayerRates(torch.ones(1, 2), torch.full((1, 64), 0.5), torch.ones(1, 1), RateBounds())
    >>> heat = layer_heat(layer)
    >>> heat["shape"], heat["mean"], len(heat["heat"]), len(heat["heat"][0])
    ([2, 64], 0.5, 2, 32)
    """
    weight = layer.weight()[0]
    rows, columns = (min(size, MAX_RATE_CELLS) for size in weight.shape)
    heat = torch.nn.functional.adaptive_avg_pool2d(weight[None], (rows, columns))[0]
    mean = round(float(weight.mean()), RATE_DECIMALS)
    return {"shape": list(weight.shape), "mean": mean, "heat": _rounded(heat, RATE_DECIMALS)}


def _rounded(values: torch.Tensor, decimals: int) -> Any:
    return np.round(values.double().numpy(), decimals).tolist()
