"""Scores: LL, RLL and PLL in three flavours, calibration, spread of functions (section 5 of the paper).

LL averages the log-likelihood over all points of a task, RLL over its context, PLL over its targets; per scalar
output. Each is computed with the mean parameters, as E_q[log p] (the paper's formula) and as log E_q[p], the log of
the predictive density of each point. The samples behind the last two are coherent: one φ for each task and sample. Of a
model whose last layer is integrated out they are hidden layers, each with the last layer in closed form, so E_q[log p]
is higher than that of whole functions, all weights sampled; the latter is scored too.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.special import ndtr

from nvdp.errors import InputError
from nvdp.models.base import MetaModel
from nvdp.posteriors.base import Posterior
from nvdp.posteriors.prediction import ClassPrediction, Prediction, mixture_log_prob
from nvdp.randomness import derived_generator
from nvdp.tasks import PointSet, TaskBatch

FLAVOURS = ("mean_parameters", "expected_log", "log_expected")
INTERVALS = (0.5, 0.9, 0.95)
BINS = 15  # of confidence
NORMAL_95 = 1.96
OF_FUNCTIONS = "expected_log_of_functions"
Table = dict[str, dict[str, Any]]  # metric → flavour → value; `std` and `stderr` of one task are None


@dataclass
class RunningMoments:
    """Mean and variance of a stream of numbers, accumulated in float64 whatever their number.

    >>> moments = RunningMoments()
    >>> moments.add(torch.tensor([1.0, 2.0])), moments.add(torch.tensor([3.0]))
    (None, None)
    >>> moments.mean, moments.std
    (2.0, 1.0)
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # Σ (value − mean)²

    def add(self, values: Tensor) -> None:
        """Take in more numbers (Chan's pairwise update)."""
        values = values.detach().double().flatten()
        if not len(values):
            return
        mean, squares = float(values.mean()), float((values - values.mean()).square().sum())
        total, shift = self.count + len(values), mean - self.mean
        self.squares += squares + shift**2 * self.count * len(values) / total
        self.mean += shift * len(values) / total
        self.count = total

    @property
    def std(self) -> float:
        """Standard deviation of the numbers; not a number of fewer than two."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else math.nan

    @property
    def stderr(self) -> float:
        """Standard error of the mean; not a number of fewer than two."""
        return self.std / math.sqrt(self.count) if self.count > 1 else math.nan


def known(value: float) -> float | None:
    """A number as results have it: None where it is not known, as JSON has no NaN.

    Args:
        value: A number, NaN where it is not known.

    Returns:
        The number or None.

    >>> known(RunningMoments(count=2, squares=2.0).stderr), known(RunningMoments(count=1).stderr)
    (1.0, None)
    """
    return None if math.isnan(value) else value


@dataclass
class RunningCorrelation:
    """Pearson's correlation of a stream of pairs, accumulated in float64.

    >>> correlation = RunningCorrelation()
    >>> correlation.add(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0]))
    >>> correlation.add(torch.tensor([3.0]), torch.tensor([6.0]))
    >>> round(correlation.value, 6)
    1.0
    """

    sums: Float[Tensor, "6"] = field(default_factory=lambda: torch.zeros(6, dtype=torch.float64))

    def add(self, a: Tensor, b: Tensor) -> None:
        """Take in more pairs."""
        a, b = a.detach().cpu().double().flatten(), b.detach().cpu().double().flatten()
        products = (torch.ones_like(a), a, b, a * a, b * b, a * b)
        self.sums = self.sums + torch.stack([product.sum() for product in products])

    @property
    def value(self) -> float:
        """The correlation; not a number if one side never varied."""
        n, a, b, aa, bb, ab = self.sums.tolist()
        spread = max(n * aa - a * a, 0.0) * max(n * bb - b * b, 0.0)
        return (n * ab - a * b) / math.sqrt(spread) if spread > 0 else math.nan


def task_means(
    values: Float[Tensor, "task point y"], mask: Bool[Tensor, "task point"]
) -> Float[Tensor, " task_with_points"]:
    """The mean over the masked points and outputs of each task that has any."""
    values, mask = values.double().mean(-1), mask.double()
    count = mask.sum(-1)
    return ((values * mask).sum(-1) / count.clamp(min=1))[count > 0]


def gaussian_crps(y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Continuous ranked probability score of N(mean, std²); lower is better.

    σ [z (2Φ(z) − 1) + 2φ(z) − 1/√π] with z = (y − mean)/σ.

    >>> round(gaussian_crps(torch.zeros(()), torch.zeros(()), torch.ones(())).item(), 4)
    0.2337
    """
    z = (y - mean) / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))


class Scores(Protocol):
    """Accumulates scores over batches of tasks; memory does not grow with their number."""

    default_samples: ClassVar[int]

    def add(
        self, posterior: Any, tasks: TaskBatch, samples: int, generator: torch.Generator
    ) -> Float[Tensor, "task point y"]:
        """Take in a posterior's predictions of some tasks; the answer is the spread of sampled functions."""
        ...

    def result(self) -> dict[str, Any]:
        """What was accumulated."""
        ...


@dataclass
class RegressionScores:
    """LL, RLL and PLL in three flavours, calibration and spread."""

    default_samples: ClassVar[int] = 16
    moments: dict[tuple[str, str], RunningMoments] = field(default_factory=dict)

    def add(
        self, posterior: Posterior, tasks: TaskBatch, samples: int, generator: torch.Generator
    ) -> Float[Tensor, "task point y"]:
        """Score all points of some tasks."""
        self.add_log_likelihoods("mean_parameters", posterior.at_mean_parameters(tasks.x).log_prob(tasks.y), tasks)
        prediction = posterior.components(tasks.x, samples, generator)
        functions = prediction if prediction.coherent else posterior.predict(tasks.x, samples, generator)
        self.add_samples(prediction, functions.spread, tasks)
        if not prediction.coherent:
            for metric, values in _by_metric(functions.log_prob_by_sample(tasks.y).mean(0), tasks):
                self._add(OF_FUNCTIONS, metric, values)
        return functions.spread

    def add_log_likelihoods(self, flavour: str, log_prob: Float[Tensor, "task point y"], tasks: TaskBatch) -> None:
        """Take in pointwise log-likelihoods of one flavour."""
        for metric, values in _by_metric(log_prob, tasks):
            self._add(metric, flavour, values)

    def add_samples(self, prediction: Prediction, spread: Float[Tensor, "task point y"], tasks: TaskBatch) -> None:
        """Take in a mixture of predictions, for two flavours and calibration on the targets, and functions' spread."""
        log_prob = prediction.log_prob_by_sample(tasks.y)
        self.add_log_likelihoods("expected_log", log_prob.mean(0), tasks)
        self.add_log_likelihoods("log_expected", mixture_log_prob(log_prob), tasks)
        target = tasks.target.mask
        distance = (prediction.cdf(tasks.y) - 0.5).abs()
        for level in INTERVALS:
            inside = (distance <= level / 2).to(distance.dtype)
            self._add("coverage", f"{level:.0%}", task_means(inside, target))
        crps = gaussian_crps(tasks.y, prediction.mean, prediction.std)
        self._add("calibration", "crps", task_means(crps, target))
        squared_error = (tasks.y - prediction.mean).square()
        self._add("calibration", "mse", task_means(squared_error, target))
        self._add("calibration", "spread", task_means(spread, tasks.whole.mask))

    def scores(self) -> Table:
        """LL, RLL and PLL; `std` and `stderr` over tasks are those of the first flavour, None for fewer than two."""
        table: Table = {}
        for metric in ("LL", "RLL", "PLL"):
            flavours = {name: m for (group, name), m in self.moments.items() if group == metric}
            first = next(iter(flavours.values()))
            table[metric] = {name: m.mean if m.count else math.nan for name, m in flavours.items()}
            table[metric] |= {"std": known(first.std), "stderr": known(first.stderr)}
        return table

    def result(self) -> dict[str, Any]:
        """The scores, coverage of intervals, CRPS, RMSE and spread."""
        of_functions = {name: moments.mean for (group, name), moments in self.moments.items() if group == OF_FUNCTIONS}
        return {
            "scores": self.scores(),
            **({OF_FUNCTIONS: of_functions} if of_functions else {}),
            "coverage": {f"{level:.0%}": self.value("coverage", f"{level:.0%}") for level in INTERVALS},
            "crps": self.value("calibration", "crps"),
            "rmse": math.sqrt(self.value("calibration", "mse")),
            "spread": self.value("calibration", "spread"),
        }

    def _add(self, group: str, name: str, values: Tensor) -> None:
        self.moments.setdefault((group, name), RunningMoments()).add(values)

    def value(self, group: str, name: str) -> float:
        """The mean of one accumulated quantity."""
        return self.moments[group, name].mean


def _by_metric(log_prob: Float[Tensor, "task point y"], tasks: TaskBatch) -> Iterator[tuple[str, Tensor]]:
    """LL, RLL and PLL of each task, where they have points."""
    for metric, mask in (("LL", tasks.mask), ("RLL", tasks.is_context), ("PLL", tasks.target.mask)):
        yield metric, task_means(log_prob, mask)


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
class ClassificationTotals:
    """Accuracy, log-likelihood and calibration of one way to predict."""

    accuracy: RunningMoments = field(default_factory=RunningMoments)
    nll: RunningMoments = field(default_factory=RunningMoments)
    bins: CalibrationBins = field(default_factory=CalibrationBins)

    def add(self, prediction: ClassPrediction, queries: PointSet) -> None:
        """Take in the predictions at the queries of several tasks."""
        mask, count = queries.mask, queries.count.clamp(min=1)
        correct = prediction.top_class == queries.y.argmax(-1)
        nll = -prediction.log_prob(queries.y)
        self.accuracy.add((correct & mask).sum(-1) / count)
        self.nll.add((nll * mask).sum(-1) / count)
        self.bins.add(prediction.confidence[mask], correct[mask])

    def result(self) -> dict[str, float | None]:
        """Fractions, not per cent; an interval is ± 1.96 standard errors over tasks, None for fewer than two tasks."""
        return {
            "accuracy": self.accuracy.mean,
            "interval95": known(NORMAL_95 * self.accuracy.stderr),
            "std": known(self.accuracy.std),
            "nll": self.nll.mean,
            "nll_interval95": known(NORMAL_95 * self.nll.stderr),
            "ece": self.bins.expected_error,
        }


@dataclass
class ClassificationScores:
    """Scores of the queries: of probabilities averaged over samples, as the paper does, and of those without sampling.

    The second ones are what :meth:`~nvdp.posteriors.base.Posterior.predict` answers unless samples are asked for.
    """

    default_samples: ClassVar[int] = 10  # the paper's
    sampled: ClassificationTotals = field(default_factory=ClassificationTotals)
    without_sampling: ClassificationTotals = field(default_factory=ClassificationTotals)
    disagreement: RunningMoments = field(default_factory=RunningMoments)
    ways: set[int] = field(default_factory=set)
    shots: set[int] = field(default_factory=set)

    def add(
        self, posterior: Posterior[ClassPrediction], tasks: TaskBatch, samples: int, generator: torch.Generator
    ) -> Float[Tensor, "task point way"]:
        """Score the targets of some tasks."""
        used = tasks.target.mask.any(0)
        queries = PointSet(tasks.x[:, used], tasks.y[:, used], tasks.target.mask[:, used])
        prediction = posterior.components(queries.x, samples, generator)
        self.sampled.add(prediction, queries)
        self.without_sampling.add(posterior.predict(queries.x), queries)
        self.disagreement.add((prediction.disagreement * queries.mask).sum(-1) / queries.count.clamp(min=1))
        self.ways.add(tasks.y.shape[-1])
        self.shots |= {int(shot) for shot in (tasks.y * tasks.is_context[..., None]).sum(1).unique()}
        return prediction.spread

    def result(self) -> dict[str, Any]:
        """The scores with samples, and those without under a name of their own."""
        ways, shots = sorted(self.ways), sorted(self.shots)
        return {
            "way": ways[0] if len(ways) == 1 else ways,
            "shot": shots[0] if len(shots) == 1 else shots,
            **self.sampled.result(),
            "disagreement": self.disagreement.mean,
            "without_sampling": self.without_sampling.result(),
        }


SCORES: dict[str, type[Scores]] = {"regression": RegressionScores, "classification": ClassificationScores}
Watch = Callable[[TaskBatch, Float[Tensor, "task point y"]], None]


@torch.no_grad()
def evaluate(
    model: MetaModel[Any],
    batches: Iterable[TaskBatch],
    samples: int | None = None,
    seed: int = 0,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Scores of a model on tasks given batch by batch: the model's part of what ``nvdp eval`` prints.

    Args:
        model: For regression or classification; it is left in evaluation mode.
        batches: The tasks.
        samples: Components of a prediction; by default 16 for regression, 10 for classification.
        seed: Of those components.
        watch: Called with each batch and the spread of the functions sampled for it.

    Returns:
        For regression "scores" (LL, RLL, PLL), of a model whose last layer is integrated out also
        "expected_log_of_functions", the second flavour with all weights sampled, "coverage", "crps", "rmse" and
        "spread"; for classification "accuracy", "nll", "ece" and others with samples, and under "without_sampling"
        without them; for both the number of tasks and the mean dropout rates. Deviations, standard errors and
        intervals over tasks are None if there is one task.
    """
    model.eval()
    totals = SCORES[model.config.kind]()
    samples = totals.default_samples if samples is None else samples
    tasks_seen, rates = 0, list[RunningMoments]()
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    for index, batch in enumerate(batches):
        tasks = model.embedded(batch.to(device).to(dtype))
        generator = derived_generator(seed, "evaluation", index, device=device)
        posterior = model.posterior_given(tasks.context, generator)
        spread = totals.add(posterior, tasks, samples, generator)
        if watch is not None:
            watch(batch, spread)
        if (mean_rates := posterior.mean_rates()) is not None:
            rates = rates or [RunningMoments() for _ in mean_rates.unbind(-1)]
            for moments, values in zip(rates, mean_rates.unbind(-1), strict=True):
                moments.add(values)
        tasks_seen += len(tasks)
    if not tasks_seen:
        raise InputError("evaluation needs at least 1 task; got 0")
    return {
        "tasks": tasks_seen,
        "samples": samples,
        **totals.result(),
        "rates": [moments.mean for moments in rates] or None,
        "mean_rate": sum(moments.mean for moments in rates) / len(rates) if rates else None,
    }
