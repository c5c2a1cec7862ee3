"""Two honest rivals of a fitted model: a Gaussian process for each context alone, and the mean curve of all tasks.

Both get the standardised data, so that a prior mean of 0 and a variance of 1 are those of the whole table.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.data.frames import FrameTasks
from nvdp.models.base import MetaModel
from nvdp.predictions import Prediction
from nvdp.randomness import derived_generator
from nvdp.tasks import Task

SAMPLES = 64
SCORED_TASKS = 40  # a GP takes its time
LEAST_CONTEXT, MOST_CONTEXT = 3, 10
MOST_NEIGHBOURS = 200
Predictor = Callable[[Task], Prediction]


@dataclass(frozen=True)
class Scores:
    """Log-likelihood of an output, RMSE and the share of outputs inside the 90 % interval."""

    LL: float
    RMSE: float
    coverage90: float


def scoring_task(x: Float[Tensor, "point x"], y: Float[Tensor, "point y"], seed: int, index: int) -> Task:
    """A task with a third of its points as context, from 3 to 10 of them, chosen at random.

    >>> scoring_task(torch.zeros(12, 1), torch.zeros(12, 1), seed=0, index=0).x_context.shape
    torch.Size([4, 1])
    """
    order = torch.randperm(len(x), generator=derived_generator(seed, "scored context", index))
    size = min(len(x) - 1, max(LEAST_CONTEXT, min(MOST_CONTEXT, len(x) // 3)))
    return Task(x[order[:size]], y[order[:size]], x[order[size:]], y[order[size:]])


def model_predictor(model: MetaModel, samples: int = SAMPLES) -> Predictor:
    """The fitted model itself."""
    return lambda task: model.adapt(task.x_context, task.y_context).predict(task.x_target, samples)


def context_gp(task: Task) -> Prediction:
    """A GP whose scale, length and noise are fitted to one context by its marginal likelihood, output by output."""
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


def mean_curve(training: FrameTasks) -> Predictor:
    """Mean and spread of the training points nearest to a query, whatever their task; the context is not used."""
    from sklearn.neighbors import NearestNeighbors

    x = torch.cat([x for x, _ in training.sets]).double().numpy()
    y = torch.cat([y for _, y in training.sets]).double().numpy()
    neighbours = NearestNeighbors(n_neighbors=max(1, min(MOST_NEIGHBOURS, round(len(x) ** 0.5) * 2, len(x)))).fit(x)

    def predict(task: Task) -> Prediction:
        near = y[neighbours.kneighbors(task.x_target.double().numpy(), return_distance=False)]  # (point, near, y)
        mean, std = torch.from_numpy(near.mean(1)), torch.from_numpy(near.std(1))
        return Prediction(mean[None], std.clamp(min=0.02)[None])

    return predict


def score(predict: Predictor, tasks: list[Task], y_spread: tuple[float, ...]) -> Scores:
    """Scores over tasks, each counting alike, in the units of the data."""
    spread = torch.tensor(y_spread, dtype=torch.float64)
    likelihoods, errors, inside = [], [], []
    for task in tasks:
        prediction = predict(task)
        log_prob = prediction.log_prob(task.y_target).double()
        mixture = torch.logsumexp(log_prob, 0) - np.log(len(log_prob)) - spread.log()
        likelihoods.append(mixture.mean().item())
        errors.append(((task.y_target - prediction.mean).double() * spread).square().mean().item())
        inside.append(((prediction.cdf(task.y_target) - 0.5).abs() <= 0.45).double().mean().item())
    return Scores(float(np.mean(likelihoods)), float(np.mean(errors) ** 0.5), float(np.mean(inside)))
