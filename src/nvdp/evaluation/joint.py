"""The likelihood of all targets of a task together, by the size of its context.

Scores of single points do not tell whether functions are right: independent noise at each point and functions that
differ can give the same. The density of many targets together does. It is computed in four ways, per scalar output:

- ``gaussian``: a Gaussian fitted to coherent sampled functions, plus the noise of observations;
- ``mixture``: log 1/L Σ_l Π_i p(y_i | φ_l) over L of them;
- ``closed_form``: where the posterior has one (`Posterior.joint_closed_form`);
- ``fed_back``: targets one at a time (or in blocks), each added to the context of the next: autoregressive.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import MultivariateNormal

from nvdp.data.gp import NOISE, GPTaskBatch
from nvdp.evaluation.in_turn import Chain
from nvdp.evaluation.inferred import InferredGP
from nvdp.evaluation.metrics import RunningCorrelation, RunningMoments, known
from nvdp.evaluation.oracle import smallest_std
from nvdp.models.base import MetaModel
from nvdp.posteriors.prediction import Prediction, mixture_log_prob
from nvdp.randomness import derived_generator
from nvdp.tasks import PointSet, TaskBatch

SIZES = (3, 5, 10, 20)  # of contexts
TARGETS, FED_BACK = 100, 30
SAMPLES = 256
JITTER = 1e-8


def regrouped(tasks: TaskBatch, size: int, targets: int, generator: torch.Generator) -> TaskBatch | None:
    """The same functions with another context: `size` random points, and up to `targets` others as targets.

    >>> from nvdp.data.gp import GPTasks
    >>> tasks = regrouped(GPTasks().validation_chunk(0, 0), 3, 20, torch.Generator())
    >>> tasks.x.shape, int(tasks.is_context.sum())
    (torch.Size([64, 23, 1]), 192)

    Returns:
        Tasks without padding, their context first; None if a task has no point left for a target.
    """
    points = min(size + targets, int(tasks.mask.sum(-1).min()))
    if points <= size:
        return None
    order = torch.rand(tasks.mask.shape, generator=generator).masked_fill(~tasks.mask.cpu(), 2).argsort(-1)
    chosen = order[:, :points, None].to(tasks.x.device)
    x, y = (part.gather(1, chosen.expand(-1, -1, part.shape[-1])) for part in (tasks.x, tasks.y))
    mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    is_context = mask.clone()
    is_context[:, size:] = False
    return replace(tasks, x=x, y=y, mask=mask, is_context=is_context)


def gaussian_joint(prediction: Prediction, y: Float[Tensor, "task point y"]) -> Float[Tensor, " task"]:
    """log density of all outputs of a task under the Gaussian with the moments of sampled functions.

    >>> functions = torch.randn(4_000, 1, 2, 1, generator=torch.Generator().manual_seed(0))
    >>> ours = gaussian_joint(Prediction(functions, torch.ones(4_000, 1, 2, 1)), torch.zeros(1, 2, 1))
    >>> round(ours.item(), 1)  # −log 2π − log 2
    -2.5
    """
    functions = prediction.functions.double().flatten(2)  # (sample, task, value)
    mean = functions.mean(0)
    offset = (functions - mean).transpose(0, 1)  # (task, sample, value)
    covariance = offset.mT @ offset / (len(functions) - 1)
    noise = prediction.stds.double().square().mean(0).flatten(1)
    covariance.diagonal(dim1=-2, dim2=-1).add_(noise + JITTER)
    return MultivariateNormal(mean, covariance, validate_args=False).log_prob(y.double().flatten(1))


@torch.no_grad()
def fed_back(model: MetaModel[Any], tasks: TaskBatch, block: int = 1) -> Float[Tensor, " task"]:
    """Σ_i log p(y_i | context, y_1 … y_{i−1}): targets become context, one block after another.

    Args:
        model: A regression model.
        tasks: Without padding, their context first.
        block: Targets that are predicted together; of more than one, the posterior's density of them together.

    Returns:
        One number for each task, not divided by the number of targets.
    """
    size, points = int(tasks.is_context[0].sum()), tasks.x.shape[1]
    total = torch.zeros(len(tasks), dtype=torch.float64)
    chain = Chain(model.adapt, tasks.x[:, :size], tasks.y[:, :size])
    targets: PointSet | None = None
    for start in range(size, points, block):
        if targets is not None:
            chain.add(targets.x, targets.y)
        posterior, part = chain.posterior, slice(start, min(start + block, points))
        targets = PointSet(tasks.x[:, part], tasks.y[:, part], tasks.mask[:, part])
        if targets.x.shape[1] == 1:
            log_prob = posterior.predict(targets.x).log_prob(targets.y).sum((-2, -1))
        else:
            closed = posterior.joint_closed_form(targets)
            log_prob = gaussian_joint(posterior.predict(targets.x, SAMPLES), targets.y) if closed is None else closed
        total += log_prob.double().cpu()
    return total


class _Means(dict[str, RunningMoments]):
    """Means over tasks by name, in the order in which they first came."""

    def take(self, **values: Tensor) -> None:
        for name, value in values.items():
            self.setdefault(name, RunningMoments()).add(value)


@torch.no_grad()
def joint_scores(
    model: MetaModel[Any],
    batches: Sequence[TaskBatch],
    seed: int = 0,
    sizes: Sequence[int] = SIZES,
    targets: int = TARGETS,
    samples: int = SAMPLES,
    in_turn: int = FED_BACK,
) -> dict[str, Any] | None:
    """Scores of targets together, and of single ones, by the size of the context.

    Args:
        model: A regression model.
        batches: Tasks; their own contexts are not used.
        seed: Of the choice of points, and of samples.
        sizes: Of contexts.
        targets: How many are scored together; as many as there are, if fewer.
        samples: Functions.
        in_turn: How many of the targets are fed back one by one. Each is a new adaptation, and later ones are easier:
            only numbers of as many targets compare.

    Returns:
        For each size, in nats per scalar output: ``single`` (one point at a time), the four ways of this module,
        ``spread`` and ``coverage50`` (the share of targets in their 50 % interval). GP functions have more:
        ``exact_std`` is the standard deviation of the function under the true kernel. ``ceiling`` is what is
        attainable, the scores of a GP that must infer the kernel (`InferredGP`). ``spread_follows_oracle`` is the
        correlation of ``spread`` and ``exact_std`` over points; None if the spread never varies. The whole is None if
        the tasks are too small.
    """
    model.eval()
    scores = _JointScores(model, InferredGP(smallest_std(model.config)), seed, samples, in_turn)
    for size in sizes:
        for index, whole in enumerate(batches):
            tasks = regrouped(whole, size, targets, derived_generator(seed, "joint", size, index))
            if tasks is not None:
                scores.add(tasks, size)
    return scores.found() if scores.means else None


@dataclass
class _JointScores:
    """Computes the scores of each batch and adds them to the means; see `joint_scores`."""

    model: MetaModel[Any]
    exact: InferredGP
    seed: int
    samples: int
    in_turn: int
    targets: int = 0  # the most that were scored together
    means: dict[int, _Means] = field(default_factory=dict)  # by size of the context
    attainable: dict[int, _Means] = field(default_factory=dict)
    follows: RunningCorrelation = field(default_factory=RunningCorrelation)

    def found(self) -> dict[str, Any]:
        """What `joint_scores` returns."""
        return {
            "tasks": list(self.means.values())[-1]["single"].count,
            "targets": self.targets,
            "fed_back_targets": min(self.in_turn, self.targets),
            "samples": self.samples,
            "by_context": {str(size): self._row(size) for size in self.means},
            **({"spread_follows_oracle": known(self.follows.value)} if self.follows.sums[0] else {}),
        }

    def _row(self, size: int) -> dict[str, Any]:
        means, attainable = self.means[size], self.attainable.get(size)
        row: dict[str, Any] = {name: moments.mean for name, moments in means.items()}
        row["stderr"] = known(means["gaussian"].stderr)
        if attainable:
            row["ceiling"] = {name: moments.mean for name, moments in attainable.items()}
        return row

    def add(self, tasks: TaskBatch, size: int) -> None:
        """Add the scores of tasks whose first `size` points are the context."""
        means = self.means.setdefault(size, _Means())
        self.targets = max(self.targets, tasks.x.shape[1] - size)
        model, like = self.model, next(self.model.parameters())
        here = tasks.to(like.device).to(like.dtype)
        target = PointSet(here.x[:, size:], here.y[:, size:], here.mask[:, size:])
        posterior = model.posterior_given(here.context)
        single, functions = posterior.predict(target.x), posterior.predict(target.x, self.samples, self.seed)
        values = target.y[0].numel()
        inside = ((single.cdf(target.y) - 0.5).abs() <= 0.25).to(like.dtype)
        means.take(
            single=single.log_prob(target.y).mean((-2, -1)), gaussian=gaussian_joint(functions, target.y) / values
        )
        if (closed := posterior.joint_closed_form(target)) is None:
            mixture = mixture_log_prob(functions.component_log_prob(target.y).sum((-2, -1)))
        else:
            generator = derived_generator(self.seed, "mixture", device=like.device)
            mixture = posterior.joint_log_prob(target, self.samples, generator)
            means.take(closed_form=closed / values)
        means.take(mixture=mixture / values)
        few = _first_points(here, size + self.in_turn)
        chain = few.y.shape[-1] * (few.x.shape[1] - size)
        means.take(fed_back=fed_back(model, few) / chain)
        means.take(coverage50=inside.mean((-2, -1)), spread=functions.spread.mean((-2, -1)))
        if isinstance(tasks, GPTaskBatch):
            variance = tasks.oracle().std[:, size:].double().square() - NOISE**2
            std = variance.clamp(min=0).sqrt()
            means.take(exact_std=std.mean((-2, -1)))
            self.follows.add(std, functions.spread)
            self.attainable.setdefault(size, _Means()).take(
                single=self.exact.log_prob(tasks)[:, size:].mean(-1),
                joint=self.exact.joint_log_prob(tasks) / (tasks.x.shape[1] - size),
                fed_back=self.exact.chain_log_prob(_first_points(tasks, size + self.in_turn)) / chain,
            )


@torch.no_grad()
def own_contexts(
    model: MetaModel[Any], batches: Sequence[TaskBatch], seed: int = 0, samples: int = SAMPLES
) -> dict[str, Any] | None:
    """All targets of each task together, given the task's own context, in nats per scalar output.

    The best of what a model has: its closed form, or the mixture over sampled functions; and targets fed back one by
    one. Of GP functions also what is attainable: the density of a GP that must infer the kernel.

    Args:
        model: A regression model.
        batches: Tasks.
        seed: Of samples.
        samples: Functions.

    Returns:
        ``together`` and ``fed_back`` with their standard errors, ``tasks`` and ``ceiling`` (what is attainable); None
        if a task has more than `TARGETS` points.
    """
    if max(batch.x.shape[1] for batch in batches) > TARGETS:
        return None
    model.eval()
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    together, chain, attainable = RunningMoments(), RunningMoments(), RunningMoments()
    exact = InferredGP(smallest_std(model.config))
    for batch in batches:
        tasks = batch.to(device).to(dtype)
        target, posterior = tasks.target, model.posterior_given(tasks.context)
        density = posterior.joint_closed_form(target)
        if density is None:
            density = posterior.joint_log_prob(target, samples, derived_generator(seed, "own", device=device))
        count = batch.target.mask.sum(-1).clamp(min=1)
        together.add(density.cpu() / (count * target.y.shape[-1]))
        chain.add(own_targets_fed_back(model, tasks) / (count * target.y.shape[-1]))
        if isinstance(batch, GPTaskBatch):
            attainable.add(exact.joint_log_prob(batch) / count)
    row = {"together": together.mean, "stderr": known(together.stderr), "tasks": together.count}
    row |= {"fed_back": chain.mean, "fed_back_stderr": known(chain.stderr)}
    return row | ({"ceiling": attainable.mean} if attainable.count else {})


@torch.no_grad()
def own_targets_fed_back(model: MetaModel[Any], tasks: TaskBatch) -> Float[Tensor, " task"]:
    """`fed_back` of tasks whose contexts and targets differ in number, each adapted anew for every target."""
    target = tasks.target.mask
    place = target.cumsum(-1)
    total = torch.zeros(len(tasks), dtype=torch.float64)
    for turn in range(1, int(place.max()) + 1):
        now, known = target & (place == turn), tasks.is_context | (target & (place < turn))
        which = now.long().argmax(-1)[:, None, None]
        x, y = (part.gather(1, which.expand(-1, -1, part.shape[-1])) for part in (tasks.x, tasks.y))
        log_prob = model.posterior_given(PointSet(tasks.x, tasks.y, known)).predict(x).log_prob(y).sum((-2, -1))
        total += (log_prob * now.any(-1)).double().cpu()
    return total


def _first_points(tasks: Any, points: int) -> Any:
    """The tasks with their first points alone."""
    return replace(tasks, **{part: getattr(tasks, part)[:, :points] for part in ("x", "y", "is_context", "mask")})
