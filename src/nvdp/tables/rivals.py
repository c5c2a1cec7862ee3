"""Rivals of a fitted model on held-out tasks: what an expert would use, and two simple answers.

The hierarchical GP and the mixed model are learned from the same training tasks and conditioned exactly on a context.
The other rivals are a GP fitted to the context alone, the mean curve of all tasks and, where x is ordered, the last
value. Tasks and predictions are in the user's units; rivals work on standardised data inside.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.errors import FarNote
from nvdp.loading import Predictor
from nvdp.models.hierarchical_gp import HierarchicalGP
from nvdp.posteriors.prediction import Prediction
from nvdp.randomness import derived_generator
from nvdp.tables.tasks import Arrays
from nvdp.tasks import PartialTask, Task
from nvdp.units import Units

HIERARCHICAL, MIXED = "hierarchical GP", "mixed model"
GP_ALONE, MEAN_CURVE, LAST_VALUE = "GP on the context alone", "mean curve of all tasks", "last value"
SCORED_CASES, MOST_EACH = 60, 2  # a GP on the context takes its time
LEAST_CONTEXT, MOST_CONTEXT = 3, 10
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # of intervals in the calibration plot
MOST_TARGETS = 400  # of a case
MOST_NEIGHBOURS = 200
MOST_PAIRS = 20_000  # of neighbouring points that the error of the last value is learned from
Rival = Callable[[Task], Prediction]  # what is predicted at a task's targets


@dataclass(frozen=True)
class Case:
    """One context of one task: log-likelihood of an output, squared error, shares inside the 90 and 50 % intervals."""

    log_likelihood: float
    squared_error: float
    inside90: float
    inside50: float = 0.5


@dataclass(frozen=True)
class Scores:
    """Log-likelihood of an output, RMSE and coverage of the 90 and 50 % intervals, over cases that count alike."""

    LL: float
    RMSE: float
    coverage90: float
    coverage50: float
    cases: int


def summary(cases: Sequence[Case]) -> Scores:
    """The scores of some cases.

    >>> summary([Case(-1.0, 4.0, 1.0), Case(-2.0, 14.0, 0.5)])
    Scores(LL=-1.5, RMSE=3.0, coverage90=0.75, coverage50=0.5, cases=2)
    """
    rows = [(case.log_likelihood, case.squared_error, case.inside90, case.inside50) for case in cases]
    likelihood, error, inside90, inside50 = np.array(rows).mean(0)
    return Scores(float(likelihood), float(error**0.5), float(inside90), float(inside50), len(cases))


def scoring_task(
    x: Float[Tensor, "point x"],
    y: Float[Tensor, "point y"],
    seed: int,
    index: int,
    context: int | None = None,
    prefix: bool = False,
) -> Task:
    """A task with some of its points as context; the others are targets.

    Args:
        x: Inputs.
        y: Outputs.
        seed: Of the choice.
        index: The number of the case, for a choice of its own.
        context: How many points; by default a third of them, from 3 to 10.
        prefix: The points that come first in x, not random ones.

    >>> scoring_task(torch.zeros(12, 1), torch.zeros(12, 1), seed=0, index=0).x_context.shape
    torch.Size([4, 1])
    """
    order = torch.randperm(len(x), generator=derived_generator(seed, "scored context", index))
    size = max(LEAST_CONTEXT, min(MOST_CONTEXT, len(x) // 3)) if context is None else context
    size = min(len(x) - 1, size)
    if prefix:
        order = order[x[order, 0].argsort(stable=True)]
    known, asked = order[:size], order[size : size + MOST_TARGETS]
    return PartialTask(x[known], y[known], x[asked], y[asked])


def scored_cases(
    tasks: Sequence[Arrays], seed: int, context: int | None = None, prefix: bool = False, most: int | None = None
) -> list[Task]:
    """Up to `most` contexts, by default `SCORED_CASES`: of many tasks one each, of few tasks up to `MOST_EACH`.

    A context that comes first has no second choice. With `context`, shorter tasks are left out.
    """
    least, most = 2 if context is None else context + 1, SCORED_CASES if most is None else most
    sets = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in tasks if len(x) >= least][:most]
    each = 1 if prefix or not sets else min(MOST_EACH, max(1, most // len(sets)))
    return [
        scoring_task(x, y, seed, number * len(sets) + i, context, prefix)
        for number in range(each)
        for i, (x, y) in enumerate(sets)
    ]


def fitted_model(predictor: Predictor) -> Rival:
    """The fitted model itself; what a task has that training tasks had not is no news here."""

    def predict(task: Task) -> Prediction:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FarNote)
            answer: Prediction = predictor.adapt(task.x_context, task.y_context).predict(task.x_target)
        return answer

    return predict


def process_rival(process: HierarchicalGP, units: Units) -> Rival:
    """A process learned from the training tasks, conditioned exactly on the context."""
    return lambda task: units.y_out(process.predict(_standardised(task, units)))


def context_gp(units: Units) -> Rival:
    """A GP whose scale, length and noise are fitted to one context by its marginal likelihood, output by output."""
    return lambda task: units.y_out(_gp(_standardised(task, units)))


def _standardised(task: Task, units: Units) -> Task:
    x, y = (units.x_in(task.x_context), units.x_in(task.x_target)), (units.y_in(task.y_context), task.y_target)
    return PartialTask(x[0], y[0], x[1], y[1])


def _gp(task: Task) -> Prediction:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    means, stds = [], []
    for column in range(task.y_context.shape[1]):
        known = ~task.y_context[:, column].isnan()
        if not known.any():
            means.append(np.zeros(len(task.x_target)))
            stds.append(np.ones(len(task.x_target)))
            continue
        kernel = ConstantKernel(1.0, (0.05, 20.0)) * RBF(1.0, (0.1, 20.0)) + WhiteKernel(0.05, (1e-4, 1.0))
        process = GaussianProcessRegressor(kernel)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            process.fit(task.x_context[known].numpy(), task.y_context[known, column].numpy())
            mean, std = process.predict(task.x_target.numpy(), return_std=True)
        means.append(mean)
        stds.append(np.maximum(std, 1e-3))
    mean, std = (torch.from_numpy(np.stack(part, -1))[None] for part in (means, stds))
    return Prediction(mean, std)


def mean_curve(training: Sequence[Arrays], units: Units) -> Rival:
    """Mean and spread of the training points nearest to a query, whatever their task; the context is not used."""
    from sklearn.neighbors import NearestNeighbors

    x = np.concatenate([np.asarray(units.x_in(x)) for x, _ in training])
    y = np.concatenate([np.asarray(units.y_in(y)) for _, y in training])
    neighbours = NearestNeighbors(n_neighbors=max(1, min(MOST_NEIGHBOURS, round(len(x) ** 0.5) * 2, len(x)))).fit(x)

    def predict(task: Task) -> Prediction:
        places = neighbours.kneighbors(np.asarray(units.x_in(task.x_target)), return_distance=False)
        near = y[places]  # (point, near, y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # no neighbour has this output
            mean, std = (torch.from_numpy(part(near, 1)) for part in (np.nanmean, np.nanstd))
        mean, std = mean.nan_to_num(0.0), std.nan_to_num(1.0)
        return units.y_out(Prediction(mean[None], std.clamp(min=0.02)[None]))

    return predict


def last_value(training: Sequence[Arrays], units: Units) -> Rival:
    """The newest output before a query, or the first one after it; its variance is a line in the distance.

    The line is learned from pairs of points of the training tasks.
    """
    gaps, squares = [], []
    for x, y in training:
        at, values = np.asarray(units.x_in(x))[:, 0], np.asarray(units.y_in(y))
        order = np.argsort(at, kind="stable")
        for step in (1, 3):
            gaps.append(at[order][step:] - at[order][:-step])
            squares.append(np.square(values[order][step:] - values[order][:-step]))
    gap, square = np.concatenate(gaps), np.concatenate(squares)
    whole = ~np.isnan(square).any(1)
    gap, square = gap[whole][:MOST_PAIRS], square[whole][:MOST_PAIRS]
    design = np.stack([np.ones_like(gap), gap], 1)
    line = np.linalg.lstsq(design, square, rcond=None)[0] if len(gap) else np.ones((2, training[0][1].shape[1]))
    constant, slope = (torch.from_numpy(np.maximum(row, floor)) for row, floor in zip(line, (1e-4, 0.0), strict=True))

    def predict(task: Task) -> Prediction:
        known, asked = (units.x_in(x)[:, 0] for x in (task.x_context, task.x_target))
        values = units.y_in(task.y_context)
        distance = (asked[:, None] - known[None])[..., None].expand(-1, -1, values.shape[1])
        distance = torch.where(values.isnan(), math.inf, distance)
        newest = torch.where(distance >= 0, distance, math.inf)  # to what came before
        nearest = torch.where(newest.isinf().all(1, keepdim=True), distance.abs(), newest).argmin(1)  # (target, y)
        gap = (asked[:, None] - known[nearest]).abs()
        mean, std = values.gather(0, nearest).nan_to_num(0.0), (constant + slope * gap).sqrt()
        return units.y_out(Prediction(mean[None], std[None]))

    return predict


def once(rival: Rival) -> Rival:
    """The same rival, which predicts each task once however often it is asked."""
    known: dict[int, Prediction] = {}

    def predict(task: Task) -> Prediction:
        if id(task) not in known:
            known[id(task)] = rival(task)
        return known[id(task)]

    return predict


def score_cases(rival: Rival, tasks: Sequence[Task], output: int | None = None) -> list[Case]:
    """The scores of each task; outputs that are missing are left out, and tasks without any.

    Args:
        rival: What is scored.
        tasks: Contexts and targets.
        output: The place of the one output to score; all, if left out.
    """
    cases = []
    for task in tasks:
        known = ~task.y_target.isnan()
        if output is not None:
            known = known & (torch.arange(known.shape[1]) == output)
        if not known.any():
            continue
        prediction = rival(task)
        y = torch.where(known, task.y_target, prediction.mean.to(task.y_target))
        log_prob = prediction.log_prob(y)
        error = (y - prediction.mean).square()
        off = (prediction.cdf(y) - 0.5).abs()
        inside = ((off <= half).double()[known].mean().item() for half in (0.45, 0.25))
        cases.append(Case(log_prob[known].mean().item(), error[known].mean().item(), *inside))
    return cases


def distances(rival: Rival, tasks: Sequence[Task]) -> list[float]:
    """The level of the smallest central interval that holds an output, of every output that is known.

    Calibrated predictions have levels that are uniform from 0 to 1.
    """
    found: list[float] = []
    for task in tasks:
        known, prediction = ~task.y_target.isnan(), rival(task)
        off = 2 * (prediction.cdf(torch.where(known, task.y_target, prediction.mean.to(task.y_target))) - 0.5).abs()
        found += off[known].tolist()
    return found
