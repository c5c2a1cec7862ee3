"""Two rivals of a fitted model: a Gaussian process for each context alone, and the mean curve of all tasks.

Tasks and predictions are in the user's units. Both rivals work on standardised data, so that a prior mean of 0 and a
variance of 1 are those of the whole table.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.loading import Predictor
from nvdp.posteriors.prediction import Prediction
from nvdp.randomness import derived_generator
from nvdp.tables.tasks import Arrays
from nvdp.tasks import Task
from nvdp.units import Units

SCORED_CASES, MOST_EACH = 40, 2  # a GP takes its time
LEAST_CONTEXT, MOST_CONTEXT, MOST_TARGETS = 3, 10, 400
MOST_NEIGHBOURS = 200
Rival = Callable[[Task], Prediction]  # what is predicted at a task's targets


@dataclass(frozen=True)
class Case:
    """One context of one task: log-likelihood of an output, squared error, and the share inside the 90 % interval."""

    log_likelihood: float
    squared_error: float
    inside: float


@dataclass(frozen=True)
class Scores:
    """Log-likelihood of an output, RMSE and coverage of the 90 % interval, over cases that count alike."""

    LL: float
    RMSE: float
    coverage90: float
    cases: int


def summary(cases: Sequence[Case]) -> Scores:
    """The scores of some cases.

    >>> summary([Case(-1.0, 4.0, 1.0), Case(-2.0, 14.0, 0.5)])
    Scores(LL=-1.5, RMSE=3.0, coverage90=0.75, cases=2)
    """
    columns = np.array([(case.log_likelihood, case.squared_error, case.inside) for case in cases])
    likelihood, error, inside = columns.mean(0)
    return Scores(float(likelihood), float(error**0.5), float(inside), len(cases))


def scoring_task(x: Float[Tensor, "point x"], y: Float[Tensor, "point y"], seed: int, index: int) -> Task:
    """A task with a third of its points as context, from 3 to 10 of them, chosen at random; up to 400 are targets.

    >>> scoring_task(torch.zeros(12, 1), torch.zeros(12, 1), seed=0, index=0).x_context.shape
    torch.Size([4, 1])
    """
    order = torch.randperm(len(x), generator=derived_generator(seed, "scored context", index))
    size = min(len(x) - 1, max(LEAST_CONTEXT, min(MOST_CONTEXT, len(x) // 3)))
    context, target = order[:size], order[size : size + MOST_TARGETS]
    return Task(x[context], y[context], x[target], y[target])


def scored_cases(tasks: Sequence[Arrays], seed: int) -> list[Task]:
    """Up to `SCORED_CASES` contexts: of many tasks one each, of few tasks up to `MOST_EACH`."""
    sets = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in tasks[:SCORED_CASES]]
    each = min(MOST_EACH, max(1, SCORED_CASES // len(sets)))
    return [scoring_task(x, y, seed, number * len(sets) + i) for number in range(each) for i, (x, y) in enumerate(sets)]


def fitted_model(predictor: Predictor) -> Rival:
    """The fitted model itself."""
    return lambda task: predictor.adapt(task.x_context, task.y_context).predict(task.x_target)


def context_gp(units: Units) -> Rival:
    """A GP whose scale, length and noise are fitted to one context by its marginal likelihood, output by output."""
    return lambda task: units.y_out(_gp(_standardised(task, units)))


def _standardised(task: Task, units: Units) -> Task:
    x, y = (units.x_in(task.x_context), units.x_in(task.x_target)), (units.y_in(task.y_context), task.y_target)
    return Task(x[0], y[0], x[1], y[1])


def _gp(task: Task) -> Prediction:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    means, stds = [], []
    for column in range(task.y_context.shape[1]):
        kernel = ConstantKernel(1.0, (0.05, 20.0)) * RBF(1.0, (0.1, 20.0)) + WhiteKernel(0.05, (1e-4, 1.0))
        process = GaussianProcessRegressor(kernel)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            process.fit(task.x_context.numpy(), task.y_context[:, column].numpy())
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
        near = y[
            neighbours.kneighbors(np.asarray(units.x_in(task.x_target)), return_distance=False)
        ]  # (point, near, y)
        mean, std = torch.from_numpy(near.mean(1)), torch.from_numpy(near.std(1))
        return units.y_out(Prediction(mean[None], std.clamp(min=0.02)[None]))

    return predict


def score_cases(rival: Rival, tasks: Sequence[Task]) -> list[Case]:
    """The scores of each task."""
    cases = []
    for task in tasks:
        prediction = rival(task)
        log_prob = prediction.log_prob(task.y_target)
        error = (task.y_target - prediction.mean).square()
        inside = (prediction.cdf(task.y_target) - 0.5).abs() <= 0.45
        cases.append(Case(log_prob.mean().item(), error.mean().item(), inside.double().mean().item()))
    return cases
