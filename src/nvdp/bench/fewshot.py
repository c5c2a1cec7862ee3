"""Suite ``fewshot``: the time of the eight few-shot classifiers for a new task, to adapt and to predict.

Images are random and weights untrained: the time depends on neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from nvdp.bench.timing import Timings, interleaved
from nvdp.data.episodes import class_source
from nvdp.models.base import Classifier
from nvdp.models.registry import MODELS, build_model
from nvdp.randomness import derived_generator
from nvdp.training.presets import preset_config

NAMES = [name for name, spec in MODELS.items() if "classification" in spec.tasks]
BASE = "protonet"
QUERIES, SAMPLES = 15, 10  # queries of a class; classifiers that probabilities are averaged over
NOTES = {
    "adapt": "model.adapt: the support images pass the extractor, then the method's own computation; for methods that "
    "adapt by gradients, their inner steps",
    "predict": f"posterior.predict at {QUERIES} queries a class, averaged over {SAMPLES} classifiers; the queries pass "
    "the extractor too",
    "images": "random; weights as initialised; statistics of batch norm not transductive",
}


@dataclass(frozen=True)
class EpisodeShape:
    """One task of a data set's images."""

    task: str
    way: int
    shot: int

    def __str__(self) -> str:
        return f"{self.task.removesuffix('-fewshot')}, {self.way}-way {self.shot}-shot"


SHAPES = (
    EpisodeShape("omniglot-fewshot", 5, 1),
    EpisodeShape("omniglot-fewshot", 5, 5),
    EpisodeShape("omniglot-fewshot", 20, 1),
    EpisodeShape("miniimagenet", 5, 1),
    EpisodeShape("miniimagenet", 5, 5),
)
QUICK_SHAPES = SHAPES[:1]


def fewshot_rows(
    rounds: int, seconds: float, shapes: Sequence[EpisodeShape] = SHAPES, names: Sequence[str] = NAMES
) -> list[dict[str, Any]]:
    """A row for each shape and method; all methods of a shape take turns, at most `seconds` for each half."""
    return [row for shape in shapes for row in _rows(shape, rounds, seconds, names)]


def _rows(shape: EpisodeShape, rounds: int, seconds: float, names: Sequence[str]) -> list[dict[str, Any]]:
    models = {name: _model(shape, name) for name in names}
    generator = derived_generator(0, "bench few-shot", str(shape))
    source = class_source(shape.task)
    numbers = source.channels * source.size**2
    support, queries = (torch.rand(1, shape.way * each, numbers, generator=generator) for each in (shape.shot, QUERIES))
    labels = torch.eye(shape.way).repeat(shape.shot, 1)[None]
    with torch.no_grad():
        posteriors = {name: model.adapt(support, labels) for name, model in models.items()}

    def adapt(name: str, _: int) -> None:
        with torch.no_grad():
            models[name].adapt(support, labels)

    def predict(name: str, _: int) -> None:
        posteriors[name].components(queries, SAMPLES)

    adapted, predicted = (
        interleaved({name: partial(work, name) for name in names}, rounds, seconds=seconds) for work in (adapt, predict)
    )
    return [_row(shape, name, adapted, predicted) for name in names]


def _row(shape: EpisodeShape, name: str, adapted: Timings, predicted: Timings) -> dict[str, Any]:
    row: dict[str, Any] = {"model": name, "shape": str(shape), "way": shape.way, "shot": shape.shot}
    for what, timings in (("adapt", adapted), ("predict", predicted)):
        own = Timings({what: timings.spans[name]}).columns()
        row |= {key: value for key, value in own.items() if key != "rounds"} | {f"{what}_rounds": own["rounds"]}
        row[f"{what}_over_{BASE}"] = timings.ratio(name, BASE) if BASE in timings.spans else None
    return row


def _model(shape: EpisodeShape, name: str) -> Classifier:
    config: Any = preset_config(shape.task, name, "cpu", way=shape.way, shot=shape.shot).model
    return build_model(config).eval()
