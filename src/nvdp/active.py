"""Active learning (figure 3): a learner asks for one point after another; how good is it after each?

A learner says what it believes about every point of some tasks, given their context. It chooses by its own doubt, or
follows an order of somebody else: a random one, or that of the exact GP, which bounds what choosing can give.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nvdp.data.gp import GPTaskBatch
from nvdp.errors import InputError
from nvdp.evaluation.metrics import RunningMoments, task_means
from nvdp.loading import Predictor
from nvdp.models.base import MetaModel
from nvdp.posteriors.prediction import Prediction, mixture_log_prob
from nvdp.posteriors.suggestions import most_uncertain, uncertainty
from nvdp.randomness import derived_generator
from nvdp.tasks import TaskBatch

SCORES = ("LL", "expected_log", "RMSE")
Order = Int[Tensor, "task query"]


class Belief(NamedTuple):
    """What is predicted at every point, and the functions behind it, which may be the same thing."""

    prediction: Prediction
    functions: Prediction


Learner = Callable[[TaskBatch], Belief]


def model_learner(model: MetaModel | Predictor, samples: int = 16, seed: int = 0) -> Learner:
    """A model that adapts to the context and samples functions, the same noise each time.

    Args:
        model: A model, or what `nvdp.load` returns; tasks are then in its units.
        samples: Functions behind a choice.
        seed: Of their noise.

    Returns:
        The learner.
    """

    def believe(tasks: TaskBatch) -> Belief:
        posterior = model.adapt(tasks.context)
        prediction = posterior.components(tasks.x, samples, seed)
        return Belief(prediction, prediction if prediction.coherent else posterior.predict(tasks.x, samples, seed))

    return believe


def exact_learner(min_std: float = 0.0) -> Learner:
    """The exact GP posterior with each task's true kernel; `min_std` floors σ as the models' likelihood does."""

    def believe(tasks: TaskBatch) -> Belief:
        assert isinstance(tasks, GPTaskBatch)
        return Belief(tasks.oracle(min_std), tasks.oracle())

    return believe


@dataclass(frozen=True)
class ActiveRun:
    """The points that were shown, in order, and the scores of each task when it had so many of them."""

    order: Order
    sizes: tuple[int, ...]
    scores: dict[str, Float[Tensor, "task size"]]  # LL: log E p over all points; the same as E log p; RMSE

    @classmethod
    def join(cls, runs: "Sequence[ActiveRun]") -> "ActiveRun":
        """Runs on different tasks as one."""
        scores = {name: torch.cat([run.scores[name] for run in runs]) for name in SCORES}
        return cls(torch.cat([run.order for run in runs]), runs[0].sizes, scores)

    def curve(self, name: str) -> tuple[list[float], list[float]]:
        """The mean of a score over tasks at every size, and its standard error."""
        moments = [RunningMoments() for _ in self.sizes]
        for each, values in zip(moments, self.scores[name].unbind(-1), strict=True):
            each.add(values)
        return [each.mean for each in moments], [each.stderr for each in moments]


def random_order(tasks: TaskBatch, points: int, seed: int, *purpose: str | int) -> Order:
    """Different points of every task, in random order."""
    generator = derived_generator(seed, "random order", *purpose)
    return torch.rand(tasks.x.shape[:2], generator=generator).masked_fill(~tasks.mask, 2).argsort(-1)[:, :points]


@torch.no_grad()
def learn(learner: Learner, tasks: TaskBatch, first: Order, queries: int = 19, by: str = "spread") -> ActiveRun:
    """Start from the `first` points and ask `queries` times for the candidate of largest doubt.

    All points of a task are candidates, and all are predicted and scored at every step.

    >>> from nvdp.data.gp import GPTasks
    >>> tasks = GPTasks().validation_chunk(seed=0, chunk=0).first(2)
    >>> run = learn(exact_learner(), tasks, random_order(tasks, 1, seed=0), queries=3)
    >>> run.sizes, run.scores["LL"].shape
    ((1, 2, 3, 4), torch.Size([2, 4]))
    """
    most = int(tasks.mask.sum(-1).min()) - first.shape[1]
    if not 0 <= queries <= most:
        raise InputError(f"queries is {queries}; expected 0 to {most}, the candidates that are left")
    order, scores = first, []
    for query in range(queries + 1):
        shown = _shown(tasks, order)
        belief = learner(replace(tasks, is_context=shown))
        scores.append(_scores(belief.prediction, tasks))
        if query < queries:
            new = most_uncertain(uncertainty(belief.functions, by).cpu(), shown | ~tasks.mask)
            order = torch.cat([order, new[:, None]], -1)
    sizes = tuple(range(first.shape[1], order.shape[1] + 1))
    return ActiveRun(order, sizes, _stacked(scores))


@torch.no_grad()
def follow(learner: Learner, tasks: TaskBatch, order: Order, sizes: Iterable[int] | None = None) -> ActiveRun:
    """Show points in a given order, and score whenever so many of them are shown; by default, each time."""
    chosen = tuple(range(1, order.shape[1] + 1) if sizes is None else sizes)
    beliefs = (learner(replace(tasks, is_context=_shown(tasks, order[:, :size]))) for size in chosen)
    return ActiveRun(order, chosen, _stacked([_scores(belief.prediction, tasks) for belief in beliefs]))


def _shown(tasks: TaskBatch, order: Order) -> Bool[Tensor, "task point"]:
    return torch.zeros_like(tasks.mask).scatter(1, order, True)


def _scores(prediction: Prediction, tasks: TaskBatch) -> dict[str, Float[Tensor, " task"]]:
    y, mask = tasks.y.to(prediction.functions), tasks.mask.to(prediction.functions.device)
    log_prob = prediction.log_prob_by_sample(y)
    squared_error = (y - prediction.mean).square()
    values = (task_means(mixture_log_prob(log_prob), mask), task_means(log_prob.mean(0), mask))
    return dict(zip(SCORES, (*values, task_means(squared_error, mask).sqrt()), strict=True))


def _stacked(scores: Sequence[dict[str, Tensor]]) -> dict[str, Float[Tensor, "task size"]]:
    return {name: torch.stack([each[name] for each in scores], -1).cpu() for name in SCORES}
