"""Training bounds: variational prior (eq. 5 and 6), usual neural-process bound, likelihood alone, log-uniform prior.

Every bound reads like its equation. The model says which points its likelihood counts (`MetaModel.scored`): the whole
task in regression, the queries in classification. It is scaled to one scalar output, so that numbers of tasks with
different sizes compare. How strongly the KL counts is explicit: a *reduction* that divides the KL summed over all of φ,
and a weight.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import kl_divergence

from nvdp.errors import InputError
from nvdp.models.base import MetaModel
from nvdp.posteriors.base import Posterior
from nvdp.tasks import PointSet, TaskBatch

KL_REDUCTIONS = {
    "elbo": "sum over φ, divided by the number of scored values: the bound per value",
    "text": "sum over φ, against the mean log-likelihood, as the paper's eq. 6 is printed",
    "released": "mean over φ, divided by the number of scored values, as in the authors' code",
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
        """The weighted KL of each task; `size` numbers in φ, `values` scored values."""
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
    scored: PointSet,
    scale: KLScale,
) -> Bound:
    values = scored.count * q_context.likelihood.values
    mean_log_likelihood = (log_likelihood / values).mean()
    value = mean_log_likelihood - scale(kl, q_context.size, values).mean()
    return Bound(value, mean_log_likelihood, kl.mean(), q_context)


def variational_prior_bound(
    model: MetaModel[Any], tasks: TaskBatch, scale: KLScale, generator: torch.Generator | None = None
) -> Bound:
    """E_{q(φ|D_C)}[log p(y | x, φ)] − KL(q(φ|D_C) ‖ q(φ|D)), eq. 5."""
    tasks = model.embedded(tasks)
    q_context, q_task = model.adapt_both(tasks)
    scored = model.scored(tasks)
    log_likelihood = q_context.expected_log_likelihood(scored, generator)
    return _bound(log_likelihood, kl_divergence(q_context, q_task), q_context, scored, scale)


def likelihood_bound(
    model: MetaModel[Any], tasks: TaskBatch, scale: KLScale, generator: torch.Generator | None = None
) -> Bound:
    """E_{q(φ|D_C)}[log p(y | x, φ)] alone: maximum likelihood for a CNP, cross-entropy for a classifier."""
    tasks = model.embedded(tasks)
    q_context = model.posterior_given(tasks.context, generator)
    scored = model.scored(tasks)
    log_likelihood = q_context.expected_log_likelihood(scored, generator)
    return _bound(log_likelihood, torch.zeros_like(log_likelihood), q_context, scored, scale)


def neural_process_bound(
    model: MetaModel[Any], tasks: TaskBatch, scale: KLScale, generator: torch.Generator | None = None
) -> Bound:
    """E_{q(φ|D)}[log p(y | x, φ)] − KL(q(φ|D) ‖ q(φ|D_C)), the bound of Garnelo et al. (2018).

    Only φ is drawn given the whole task; a deterministic path sees the context alone, as it will when it is used.
    """
    tasks = model.embedded(tasks)
    q_context, q_task = model.adapt_both(tasks)
    scored = model.scored(tasks)
    log_likelihood = q_task.with_deterministic_path_of(q_context).expected_log_likelihood(scored, generator)
    return _bound(log_likelihood, kl_divergence(q_task, q_context), q_context, scored, scale)


def log_uniform_kl(rates: Tensor) -> Tensor:
    """KL of a dropout posterior to the log-uniform prior, up to a constant, element by element.

    The approximation of Molchanov et al. (2017) with α = P/(1−P), shifted to be zero for α → ∞:
    k₁ − k₁ s(k₂ + k₃ log α) + ½ log(1 + 1/α).
    """
    k1, k2, k3 = 0.63576, 1.87320, 1.48695
    log_alpha = torch.logit(rates)
    return k1 - k1 * torch.sigmoid(k2 + k3 * log_alpha) + 0.5 * torch.log1p(torch.exp(-log_alpha))


def log_uniform_bound(
    model: MetaModel[Any], tasks: TaskBatch, scale: KLScale, generator: torch.Generator | None = None
) -> Bound:
    """E_{q(φ|D_C)}[log p(y | x, φ)] − KL(q(φ|D_C) ‖ log-uniform): the prior that the paper argues against."""
    tasks = model.embedded(tasks)
    q_context = model.posterior_given(tasks.context, generator)
    if q_context.rates is None:
        raise InputError(f"the log-uniform prior needs a dropout posterior; {model.config.name} has none")
    scored = model.scored(tasks)
    log_likelihood = q_context.expected_log_likelihood(scored, generator)
    kl = sum(
        (log_uniform_kl(r.weight()).sum((-2, -1)) + log_uniform_kl(r.bias()).sum(-1) for r in q_context.rates),
        start=log_likelihood.new_zeros(()),
    )
    return _bound(log_likelihood, kl.view(len(tasks), -1).sum(1), q_context, scored, scale)


OBJECTIVES: dict[str, Objective] = {
    "variational-prior": variational_prior_bound,
    "neural-process": neural_process_bound,
    "likelihood": likelihood_bound,
    "log-uniform": log_uniform_bound,
}
