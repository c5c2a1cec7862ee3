"""Training bounds: variational prior (eq. 5 and 6), usual neural-process bound, likelihood alone, log-uniform prior.

Those whose name begins with query are for classification: their likelihood is that of the targets alone.

Every bound reads like its equation and is scaled to one scalar output, so that numbers of tasks with different sizes
compare. How strongly the KL counts is explicit: a *reduction* that divides the KL summed over all of φ, and a weight.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import kl_divergence

from nvdp.errors import InputError
from nvdp.models.base import FewShotModel, MetaModel, query_points
from nvdp.posteriors.base import Posterior
from nvdp.posteriors.dropout import DropoutPosterior
from nvdp.tasks import TaskBatch

KL_REDUCTIONS = {
    "elbo": "sum over φ, divided by the number of values of the whole task: the bound per value",
    "text": "sum over φ, against the mean log-likelihood, as the paper's eq. 6 is printed",
    "released": "mean over φ, divided by the number of values of the whole task, as in the authors' code",
}


@dataclass(frozen=True)
class KLScale:
    """What the KL divergence is divided by, and its weight."""

    reduction: str = "elbo"
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.reduction not in KL_REDUCTIONS:
            raise InputError(f"unknown KL reduction '{self.reduction}'; there are {', '.join(KL_REDUCTIONS)}")
        if not self.weight >= 0:
            raise InputError(f"the KL weight is {self.weight}; expected a number of at least 0")

    def __call__(self, kl: Float[Tensor, " task"], size: int, values: Float[Tensor, " task"]) -> Float[Tensor, " task"]:
        """The weighted KL of each task; `size` numbers in φ, `values` values in the whole task."""
        if self.reduction == "text":
            return self.weight * kl
        return self.weight * kl / (values * max(size, 1) if self.reduction == "released" else values)


@dataclass(frozen=True)
class Bound:
    """A training bound, averaged over tasks, and its parts."""

    value: Float[Tensor, ""]  # to maximise
    log_likelihood: Float[Tensor, ""]  # per value that is scored
    kl: Float[Tensor, ""]  # summed over φ, unweighted
    posterior: Posterior[Any]  # q(φ | D_C)


Objective = Callable[[Any, TaskBatch, KLScale, torch.Generator | None], Bound]


def _bound(
    log_likelihood: Float[Tensor, " task"],
    kl: Float[Tensor, " task"],
    q_context: Posterior[Any],
    tasks: TaskBatch,
    scale: KLScale,
) -> Bound:
    return _bound_per_value(log_likelihood, kl, q_context, tasks.whole.count * tasks.y.shape[-1], scale)


def _bound_per_value(
    log_likelihood: Float[Tensor, " task"],
    kl: Float[Tensor, " task"],
    q_context: Posterior[Any],
    values: Float[Tensor, " task"],
    scale: KLScale,
) -> Bound:
    mean_log_likelihood = (log_likelihood / values).mean()
    value = mean_log_likelihood - scale(kl, q_context.size, values).mean()
    return Bound(value, mean_log_likelihood, kl.mean(), q_context)


def variational_prior_bound(
    model: MetaModel, tasks: TaskBatch, scale: KLScale, generator: torch.Generator | None = None
) -> Bound:
    """E_{q(φ|D_C)}[log p(y | x, φ)] − KL(q(φ|D_C) ‖ q(φ|D)), eq. 5."""
    q_context, q_task = model.adapt_both(tasks)
    log_likelihood = q_context.expected_log_likelihood(tasks.whole, generator)
    return _bound(log_likelihood, kl_divergence(q_context, q_task), q_context, tasks, scale)


def likelihood_bound(
    model: MetaModel, tasks: TaskBatch, scale: KLScale, generator: torch.Generator | None = None
) -> Bound:
    """E_{q(φ|D_C)}[log p(y | x, φ)] alone: maximum likelihood, the objective of a CNP."""
    q_context = model.adapt(tasks.context)
    log_likelihood = q_context.expected_log_likelihood(tasks.whole, generator)
    return _bound(log_likelihood, torch.zeros_like(log_likelihood), q_context, tasks, scale)


def neural_process_bound(
    model: MetaModel, tasks: TaskBatch, scale: KLScale, generator: torch.Generator | None = None
) -> Bound:
    """E_{q(φ|D)}[log p(y | x, φ)] − KL(q(φ|D) ‖ q(φ|D_C)), the bound of Garnelo et al. (2018).

    Only φ is drawn given the whole task; a deterministic path sees the context alone, as it will when it is used.
    """
    q_context, q_task = model.adapt_both(tasks)
    sampled = q_task.with_known_part_of(q_context)
    log_likelihood = sampled.expected_log_likelihood(tasks.whole, generator)
    return _bound(log_likelihood, kl_divergence(q_task, q_context), q_context, tasks, scale)


def log_uniform_kl(rates: Tensor) -> Tensor:
    """KL of a dropout posterior to the log-uniform prior, up to a constant, element by element.

    The approximation of Molchanov et al. (2017) with α = P/(1−P), shifted to be zero for α → ∞:
    k₁ − k₁ s(k₂ + k₃ log α) + ½ log(1 + 1/α).
    """
    k1, k2, k3 = 0.63576, 1.87320, 1.48695
    log_alpha = torch.logit(rates)
    return k1 - k1 * torch.sigmoid(k2 + k3 * log_alpha) + 0.5 * torch.log1p(torch.exp(-log_alpha))


def log_uniform_bound(
    model: MetaModel, tasks: TaskBatch, scale: KLScale, generator: torch.Generator | None = None
) -> Bound:
    """E_{q(φ|D_C)}[log p(y | x, φ)] − KL(q(φ|D_C) ‖ log-uniform): the prior that the paper argues against."""
    q_context = model.adapt(tasks.context)
    if not isinstance(q_context, DropoutPosterior):
        raise InputError(f"the log-uniform prior needs a dropout posterior; {model.config.name} has none")
    log_likelihood = q_context.expected_log_likelihood(tasks.whole, generator)
    kl = sum(
        (log_uniform_kl(r.weight()).sum((-2, -1)) + log_uniform_kl(r.bias()).sum(-1) for r in q_context.rates),
        start=log_likelihood.new_zeros(()),
    )
    return _bound(log_likelihood, kl, q_context, tasks, scale)


def query_variational_prior_bound(
    model: FewShotModel, tasks: TaskBatch, scale: KLScale, generator: torch.Generator | None = None
) -> Bound:
    """E_{q(φ|support)}[log p(y | x, φ)] of the queries − KL(q(φ|support) ‖ q(φ|support and queries)), eq. 5.

    The support's own likelihood is left out: q was made from these very images, in a one-shot task from one image a
    class, and knowing an image again says little about the class.
    """
    tasks = model.embedded(tasks)
    q_context, q_task = model.adapt_both(tasks)
    queries = query_points(tasks)
    log_likelihood = q_context.expected_log_likelihood(queries, generator)
    return _bound_per_value(log_likelihood, kl_divergence(q_context, q_task), q_context, queries.count, scale)


def query_likelihood_bound(
    model: FewShotModel, tasks: TaskBatch, scale: KLScale, generator: torch.Generator | None = None
) -> Bound:
    """E_{q(φ|support)}[log p(y | x, φ)] of the queries alone: cross-entropy after adaptation."""
    tasks = model.embedded(tasks)
    q_context = model.posterior(tasks.context, generator)
    queries = query_points(tasks)
    log_likelihood = q_context.expected_log_likelihood(queries, generator)
    return _bound_per_value(log_likelihood, torch.zeros_like(log_likelihood), q_context, queries.count, scale)


REGRESSION_OBJECTIVES: dict[str, Objective] = {
    "variational-prior": variational_prior_bound,
    "neural-process": neural_process_bound,
    "likelihood": likelihood_bound,
    "log-uniform": log_uniform_bound,
}
CLASS_OBJECTIVES: dict[str, Objective] = {
    "query-variational-prior": query_variational_prior_bound,
    "query-likelihood": query_likelihood_bound,
}
OBJECTIVES = REGRESSION_OBJECTIVES | CLASS_OBJECTIVES
