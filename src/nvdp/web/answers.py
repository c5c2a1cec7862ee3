"""A prediction on its way to JSON: six decimals, rates averaged over blocks, nothing that is not finite."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.errors import InputError
from nvdp.nn.rates import LayerRates
from nvdp.posteriors.prediction import ClassPrediction
from nvdp.web.limits import MAX_RATE_CELLS

DECIMALS, RATE_DECIMALS = 6, 4


@dataclass(frozen=True)
class Answer:
    """What a model says about every query point, and the rates it chose if it has any."""

    mean: Float[np.ndarray, "query y"]
    std: Float[np.ndarray, "query y"]
    functions: Float[np.ndarray, "sample query y"]
    rates: Sequence[LayerRates] | None
    decimals: int = DECIMALS

    def __post_init__(self) -> None:
        if not (np.isfinite(self.mean).all() and np.isfinite(self.std).all() and np.isfinite(self.functions).all()):
            raise InputError("the prediction is not finite there; give x and y nearer to what the model has seen")

    def to_json(self) -> dict[str, Any]:
        """The answer of /api/adapt."""
        return {
            "mean": np.round(self.mean, self.decimals).tolist(),
            "std": np.round(self.std, self.decimals).tolist(),
            "samples": np.round(self.functions, self.decimals).tolist(),
            "rates": None if self.rates is None else [layer_heat(layer) for layer in self.rates],
        }

    def most_uncertain(self, query: Float[np.ndarray, "query x"]) -> dict[str, Any]:
        """The answer of /api/suggest: the candidate of the largest variance, summed over outputs."""
        index = int(np.square(self.std).sum(-1).argmax())
        row = {"x": query[index], "mean": self.mean[index], "std": self.std[index]}
        return {"index": index} | {name: np.round(value, self.decimals).tolist() for name, value in row.items()}


def class_answer(prediction: ClassPrediction, samples: int) -> dict[str, Any]:
    """The answer of /api/classify.

    >>> two = ClassPrediction(torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log())
    >>> answer = class_answer(two, samples=2)
    >>> answer["probabilities"], answer["std"], round(answer["disagreement"][0], 3)
    ([[0.7, 0.3]], [[0.2, 0.2]], 0.102)
    """
    each = prediction.by_sample.exp()
    parts = {
        "probabilities": prediction.probabilities,
        "std": each.std(0, correction=0),
        "samples": each if samples else each[:0],
        "entropy": prediction.entropy,
        "disagreement": prediction.disagreement,
    }
    return {name: np.round(part.double().numpy(), DECIMALS).tolist() for name, part in parts.items()}


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
    return {
        "shape": list(weight.shape),
        "mean": round(float(weight.mean()), RATE_DECIMALS),
        "heat": _rounded(heat),
    }


def _rounded(values: Float[Tensor, "row column"]) -> list[list[float]]:
    return np.round(values.double().cpu().numpy(), RATE_DECIMALS).tolist()
