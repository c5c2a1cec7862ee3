"""What held-out tasks say about a fit: the network's share of the prediction, and factors of the predictive deviation.

The share maximises the likelihood of held-out tasks, and so does the tail: how many outputs are outliers, and how far
they lie. The factors make 90 % intervals cover 90 % of the outputs (split conformal prediction with a relative score):
by groups of context sizes, and apart for points beyond the context. Few tasks say little, so the share is drawn towards
0, i.e. to the process, and the tail too. Each factor is drawn towards that of a larger group, that of all towards 1, by
its standard error over tasks (bootstrap, and at least that of independent normal errors). Where few tasks were held
out, the process is also fitted to parts of the training tasks and asked about the others.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nvdp.data.frames import CONTEXTS, FrameTasks
from nvdp.models.hierarchical_gp import HierarchicalGP
from nvdp.posteriors.adjusted import Adjustment, blend, only_first_varies, stretched, with_tail
from nvdp.posteriors.prediction import Prediction
from nvdp.tables.prior import fit_prior
from nvdp.tables.tasks import in_folds
from nvdp.tasks import TaskBatch

SIZES = (2, 5, 10)  # upper ends of groups of context sizes
DOUBT = 40  # tasks that count as much as the belief that there is no tail
# Standard deviations that logarithms of factors are believed to have about that of a larger group: of all errors with a
# process, whose intervals are those of a fitted model, and of a network alone; of points among or beyond; of a size.
EXPECTED, EXPECTED_ALONE, EXPECTED_OF_KIND, EXPECTED_OF_SIZE = 0.05, 0.5, 0.05, 0.025
REDRAWN = 40  # times that tasks are drawn again, for the standard error of a factor
OF_NORMAL = 0.78  # variance of the logarithm of the 90 % quantile of |z|, times the number of normal z
DOUBT_OF_NETWORK = 40  # tasks that count as much as the belief that the process is enough
SHARES = tuple(step / 10 for step in range(11))
LARGEST_FACTOR, SMALLEST_RATIO = 3.0, 1e-6
TAIL_SHARES, TAIL_WIDTHS = (0.02, 0.05, 0.1, 0.2), (2.0, 3.0, 4.0)  # of outliers
FACTORS = (0.8, 0.9, 1.0, 1.15)  # of everything, to choose a tail by
MOST_OF_TAIL = 200_000  # numbers that a tail is chosen by
LEVEL = 0.9
ENOUGH, FOLDS, MOST_CROSSED = 60, 4, 120  # held-out tasks; else folds, and most tasks, that the process is crossed by
MOST_AT_ONCE = 64  # contexts; a multiple of those of a task


@dataclass(frozen=True)
class Errors:
    """Of outputs of held-out tasks: |y − mean| over half the 90 % interval, and what kind of output each is."""

    ratio: Float[Tensor, " output"]
    weight: Float[Tensor, " output"]  # the outputs of a context together have 1
    size: Int[Tensor, " output"]  # of the context
    ahead: Bool[Tensor, " output"]  # beyond the last point of the context
    task: Int[Tensor, " output"]  # its number

    @classmethod
    def of(cls, prediction: Prediction, batch: TaskBatch, ordered: bool, first: int) -> Self:
        """The errors of a batch of tasks with `CONTEXTS` contexts each; `first` is the number of its first task.

        Outputs at the last x of an ordered context are left out: mostly repeats of a row, neither among nor beyond it.
        """
        half = (prediction.quantile(0.5 + LEVEL / 2) - prediction.quantile(0.5 - LEVEL / 2)) / 2
        last = torch.where(batch.is_context, batch.x[..., 0], -math.inf).amax(1, keepdim=True)
        target = _known(batch) & ~((batch.x[..., 0] == last) & ordered)[..., None]
        ahead = (batch.x[..., 0] > last) & last.isfinite() & ordered
        size = batch.is_context.sum(1)[:, None, None]
        task = (first + torch.arange(len(batch)) // CONTEXTS)[:, None, None]
        return cls(
            ((batch.y - prediction.mean).abs() / half)[target],
            (target / target.sum((1, 2), keepdim=True).clamp(min=1))[target],
            size.expand(target.shape)[target],
            ahead[..., None].expand(target.shape)[target],
            task.expand(target.shape)[target],
        )

    @classmethod
    def joined(cls, parts: Iterable["Errors"]) -> Self:
        """All of them."""
        found = list(parts)
        return cls(*(torch.cat([getattr(each, name) for each in found]) for name in cls.__dataclass_fields__))

    def where(self, chosen: Bool[Tensor, " output"]) -> Self:
        """Some of them."""
        return type(self)(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    def log_factor(self, otherwise: float, expected: float) -> float:
        """The logarithm of the factor that makes intervals cover `LEVEL`, drawn towards another value.

        Args:
            otherwise: That value: what to believe where nothing is known.
            expected: The standard deviation that factors are believed to have about it.
        """
        if not len(self.ratio):
            return otherwise
        order = self.ratio.argsort()
        ratio, weight, task = self.ratio[order].double(), self.weight[order].double(), self.task[order]
        counts = torch.ones(int(task.max()) + 1, dtype=torch.float64)
        found = _log_quantile(ratio, weight * counts[task])
        chance, own = torch.Generator().manual_seed(0), task.unique()
        again = []
        for _ in range(REDRAWN):
            drawn = own[torch.randint(len(own), own.shape, generator=chance)]
            times = torch.zeros_like(counts).index_add(0, drawn, torch.ones(len(drawn), dtype=torch.float64))
            again.append(_log_quantile(ratio, weight * times[task]))
        variance = float(torch.tensor(again, dtype=torch.float64).var(correction=0)) if len(own) > 1 else math.inf
        variance = max(variance, OF_NORMAL * CONTEXTS / len(ratio))  # few errors may agree by chance
        trust = expected**2 / (expected**2 + variance)
        most = math.log(LARGEST_FACTOR)
        return trust * min(most, max(-most, found)) + (1 - trust) * otherwise


def _log_quantile(ratio: Float[Tensor, " output"], weight: Float[Tensor, " output"]) -> float:
    """The logarithm of the weighted quantile of sorted ratios."""
    reached = weight.cumsum(0)
    place = int(torch.searchsorted(reached, LEVEL * reached[-1]))
    return math.log(max(SMALLEST_RATIO, float(ratio[min(place, len(ratio) - 1)])))


@torch.no_grad()
def adjusted(
    model: Any,
    process: HierarchicalGP | None,
    around: bool,
    batches: Sequence[TaskBatch],
    tasks: int,
    training: FrameTasks | None = None,
) -> Adjustment:
    """Find the share and the factors that suit held-out tasks.

    Args:
        model: A trained network, on standardised values.
        process: The hierarchical GP of the training tasks, if there is one.
        around: Whether the network predicts its residuals.
        batches: Held-out tasks, each with several contexts.
        tasks: How many different tasks they are.
        training: The training tasks, for more errors of the process where few tasks were held out.

    Returns:
        The adjustment.
    """
    alone = Adjustment(process, around)
    parts = [part for batch in batches for part in _parts(batch)]
    network = [alone.adapt(model, part.context).predict(part.x) for part in parts]
    answers, share = list(zip(network, parts, strict=True)), 1.0
    ordered = only_first_varies(process, batches[0].x.shape[-1])
    if process is not None:
        others = [process.given(part.context).predict(part.x.double()) for part in parts]
        share = round(_best_share(network, others, parts) * tasks / (tasks + DOUBT_OF_NETWORK), 3)
        answers = [(blend(ours, theirs, share), part) for (ours, part), theirs in zip(answers, others, strict=True)]
        if training is not None and tasks < ENOUGH:
            crossed = training.sets[:MOST_CROSSED]
            answers += _crossed(process, replace(training, sets=tuple(crossed)))
            tasks += len(crossed)
    tail_share, width = best_tail(answers)
    tail = (round(tail_share * tasks / (tasks + DOUBT), 3), width)
    numbers = itertools.accumulate((len(part) // CONTEXTS for _, part in answers), initial=0)
    errors = Errors.joined(
        Errors.of(with_tail(answer, *tail), part, ordered, first)
        for (answer, part), first in zip(answers, numbers, strict=False)
    )
    inside, ahead = _factors(errors, EXPECTED_ALONE if process is None else EXPECTED)
    return Adjustment(process, around, share, SIZES, inside, ahead, tail)


def _parts(batch: TaskBatch) -> Iterable[TaskBatch]:
    for start in range(0, len(batch), MOST_AT_ONCE):
        chosen = slice(start, start + MOST_AT_ONCE)
        yield TaskBatch(batch.x[chosen], batch.y[chosen], batch.is_context[chosen], batch.mask[chosen])


def _known(batch: TaskBatch) -> Bool[Tensor, "task point y"]:
    """The outputs of targets."""
    return batch.target.mask[..., None].expand(batch.y.shape) & ~batch.y.isnan()


def _best_share(network: list[Prediction], process: list[Prediction], batches: list[TaskBatch]) -> float:
    """The network's weight that makes held-out tasks most likely; every context counts alike."""
    scores = torch.zeros(len(SHARES), dtype=torch.float64)
    for ours, theirs, batch in zip(network, process, batches, strict=True):
        known = _known(batch)
        both = [each.log_prob(batch.y).double().nan_to_num(neginf=-1e3) for each in (ours, theirs)]
        for place, share in enumerate(SHARES):
            mixed = torch.logaddexp(both[0] + math.log(max(share, 1e-9)), both[1] + math.log(max(1 - share, 1e-9)))
            scores[place] += ((mixed * known).sum((1, 2)) / known.sum((1, 2)).clamp(min=1)).sum()
    return SHARES[int(scores.argmax())]


def best_tail(answers: Sequence[tuple[Prediction, TaskBatch]]) -> tuple[float, float]:
    """The share and the width of outliers that make the targets most likely, whatever factor everything has.

    Args:
        answers: Predictions at all points of batches of tasks; every context counts alike.

    Returns:
        The share, 0 if there are none, and the width.
    """
    ways = [(factor, 0.0, 1.0) for factor in FACTORS]
    ways += [(factor, share, width) for factor in FACTORS for share in TAIL_SHARES for width in TAIL_WIDTHS]
    scores, numbers = torch.zeros(len(ways), dtype=torch.float64), 0
    for answer, batch in answers:
        numbers += answer.functions.numel()
        if numbers > MOST_OF_TAIL * len(answer.functions) and scores.any():
            break
        known = _known(batch)
        weight = known / known.sum((1, 2), keepdim=True).clamp(min=1)

        def density(factor: float, answer: Prediction = answer, batch: TaskBatch = batch) -> Tensor:
            found: Tensor = stretched(answer, factor).log_prob(batch.y).double().nan_to_num(neginf=-1e3)
            return found

        at = {factor: density(factor) for factor in {a * b for a in FACTORS for b in (1.0, *TAIL_WIDTHS)}}
        for place, (factor, share, width) in enumerate(ways):
            value = at[factor]
            if share:
                value = torch.logaddexp(value + math.log(1 - share), at[factor * width] + math.log(share))
            scores[place] += (value * weight).sum()
    _, share, width = ways[int(scores.argmax())]
    return share, width


def _crossed(process: HierarchicalGP, training: FrameTasks) -> list[tuple[Prediction, TaskBatch]]:
    """What the process predicts of tasks that it has not been fitted to: fold by fold."""
    found = []
    for others, fold in in_folds(list(training.sets), min(FOLDS, len(training.sets)), seed=0):
        fitted = fit_prior(others, process.kernel.parts, start=process)
        for batch in replace(training, sets=tuple(fold)).scored_batches(0, len(fold)):
            for part in _parts(batch):
                found.append((fitted.given(part.context).predict(part.x.double()), part))
    return found


def _factors(errors: Errors, expected: float) -> list[tuple[float, ...]]:
    """By context size: of points among the context, and of those beyond."""
    everything = errors.log_factor(0.0, expected)
    found = []
    for kind in (errors.where(~errors.ahead), errors.where(errors.ahead)):
        whole = kind.log_factor(everything, EXPECTED_OF_KIND)
        group = torch.bucketize(kind.size, torch.tensor(SIZES))
        each = (kind.where(group == place).log_factor(whole, EXPECTED_OF_SIZE) for place in range(len(SIZES) + 1))
        found.append(tuple(round(math.exp(value), 4) for value in each))
    return found
