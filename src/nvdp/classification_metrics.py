"""Scores of few-shot classifiers: accuracy with an interval over tasks, negative log-likelihood, calibration error."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nvdp.class_predictions import ClassPrediction
from nvdp.errors import InputError
from nvdp.metrics import RunningMoments
from nvdp.models.fewshot_base import FewShotModel, query_points
from nvdp.randomness import derived_generator
from nvdp.tasks import PointSet, TaskBatch

BINS = 15
NORMAL_95 = 1.96


@dataclass
class CalibrationBins:
    """Confidence and accuracy of the top class in equal bins of confidence, accumulated over batches.

    >>> bins = CalibrationBins()
    >>> bins.add(torch.tensor([0.9, 0.9]), torch.tensor([True, False]))
    >>> round(bins.expected_error, 4)
    0.4
    """

    totals: Tensor = field(default_factory=lambda: torch.zeros(3, BINS, dtype=torch.float64))  # count, Σ p, Σ hits

    def add(self, confidence: Float[Tensor, " point"], correct: Bool[Tensor, " point"]) -> None:
        """Take in more points."""
        confidence = confidence.detach().double().cpu()
        place = (confidence * BINS).long().clamp(0, BINS - 1)
        for row, values in enumerate((torch.ones_like(confidence), confidence, correct.double().cpu())):
            self.totals[row].index_add_(0, place, values)

    @property
    def expected_error(self) -> float:
        """ECE: the mean over points of |accuracy − confidence| of their bin."""
        count, confidence, hits = self.totals
        return float((hits - confidence).abs().sum() / count.sum()) if count.sum() else math.nan


@dataclass
class ClassificationScores:
    """Accumulates scores of queries over batches of tasks; memory does not grow with their number."""

    accuracy: RunningMoments = field(default_factory=RunningMoments)
    nll: RunningMoments = field(default_factory=RunningMoments)
    disagreement: RunningMoments = field(default_factory=RunningMoments)
    bins: CalibrationBins = field(default_factory=CalibrationBins)

    def add(self, prediction: ClassPrediction, queries: PointSet) -> None:
        """Take in the predictions at the queries of several tasks."""
        mask, count = queries.mask, queries.count.clamp(min=1)
        correct = prediction.top_class == queries.y.argmax(-1)
        nll = -prediction.log_prob(queries.y)
        self.accuracy.add((correct & mask).sum(-1) / count)
        self.nll.add((nll * mask).sum(-1) / count)
        self.disagreement.add((prediction.disagreement * mask).sum(-1) / count)
        self.bins.add(prediction.confidence[mask], correct[mask])

    def scores(self) -> dict[str, float]:
        """Fractions, not per cent; an interval is ± 1.96 standard errors over tasks."""
        return {
            "accuracy": self.accuracy.mean,
            "interval95": NORMAL_95 * self.accuracy.stderr,
            "std": self.accuracy.std,
            "nll": self.nll.mean,
            "nll_interval95": NORMAL_95 * self.nll.stderr,
            "ece": self.bins.expected_error,
            "disagreement": self.disagreement.mean,
        }


@torch.no_grad()
def evaluate_classification(
    model: FewShotModel,
    batches: Iterable[TaskBatch],
    samples: int = 10,
    seed: int = 0,
    statistics: str | None = None,
) -> dict[str, object]:
    """Scores of a classifier on the queries of tasks given batch by batch.

    `statistics` is what batch norm uses, by default as the model is set; "batch" is transductive: each task's queries
    then help to classify each other. The model is left as it was, in evaluation mode.
    """
    model.eval()
    as_set = model.statistics
    model.statistics = as_set if statistics is None else statistics
    totals, rates, tasks_seen = ClassificationScores(), RunningMoments(), 0
    shapes: set[tuple[int, int]] = set()
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    try:
        for index, batch in enumerate(batches):
            generator = derived_generator(seed, "evaluation", index, device=device)
            tasks = model.embedded(batch.to(device).to(dtype))
            posterior, queries = model.posterior(tasks.context, generator), query_points(tasks)
            totals.add(posterior.predict(queries.x, samples, generator), queries)
            mean_rates = posterior.mean_rates()
            if mean_rates is not None:
                rates.add(mean_rates.mean(-1))
            shots = (tasks.y * tasks.is_context[..., None]).sum(1)
            shapes |= {(tasks.y.shape[-1], int(shot)) for shot in shots.unique()}
            tasks_seen += len(tasks)
        used = model.statistics
    finally:
        model.statistics = as_set
    if not tasks_seen:
        raise InputError("evaluation needs at least 1 task; got 0")
    ways, shots_seen = sorted({way for way, _ in shapes}), sorted({shot for _, shot in shapes})
    return {
        "tasks": tasks_seen,
        "samples": samples,
        "way": ways[0] if len(ways) == 1 else ways,
        "shot": shots_seen[0] if len(shots_seen) == 1 else shots_seen,
        **totals.scores(),
        "statistics": used if model.config.extractor != "none" else None,
        "transductive": used == "batch" and model.config.extractor != "none",
        "mean_rate": rates.mean if rates.count else None,
    }
