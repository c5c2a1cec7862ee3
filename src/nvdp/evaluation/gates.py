"""Gates: does the posterior live in the dropout rates? Each is a question with a number as its answer.

- constant rates: each task's rates are replaced by their mean over tasks. If predictions stay as good, the rates do
  not depend on the context in any way that matters.
- another task's rates: those of the next task. If predictions stay as good, the context is not in the rates.
- spread against the exact standard deviation: do sampled functions differ where the exact posterior is wide?
- own choice against random points: is the spread worth asking for (active learning, figure 3)?

What a KL weight of 0 changes needs another training: `nvdp reproduce alive`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.active import follow, learn, model_learner, random_order
from nvdp.data.gp import GPTaskBatch
from nvdp.errors import InputError
from nvdp.evaluation.metrics import RunningMoments, task_means
from nvdp.models.base import MetaModel
from nvdp.posteriors.dropout import DropoutPosterior
from nvdp.tasks import TaskBatch

LEAST_COST = 0.1  # nats a point that wrong rates must cost
LEAST_CORRELATION = 0.8  # of spread and exact standard deviation
LEAST_GAIN = 0.0  # nats a point of own choice over random points
CLEAR = 2.0  # standard errors by which a number must be above 0
POINTS, EVERY = 20, 4  # points to choose; candidates are every fourth of a validation grid
FLOOR_MARGIN = 1.5  # a layer whose mean rate is below so many floors is called idle


@dataclass(frozen=True)
class Gate:
    """One question: the number measured, its standard error, and what it must reach."""

    name: str
    value: float
    stderr: float
    least: float

    @property
    def passed(self) -> bool:
        """Whether the number is high enough, and above 0 by `CLEAR` standard errors."""
        return self.value >= max(self.least, CLEAR * self.stderr)

    def to_json(self) -> dict[str, Any]:
        """The gate as `nvdp eval --gates` prints it."""
        return {"value": self.value, "stderr": self.stderr, "least": self.least, "passed": self.passed}


def mean_over_tasks(expert: Float[Tensor, "task *point k"]) -> Float[Tensor, "task *point k"]:
    """The same rates for all tasks, and for all their targets."""
    return expert.flatten(0, -2).mean(0).expand_as(expert)


def next_task(expert: Float[Tensor, "task *point k"]) -> Float[Tensor, "task *point k"]:
    """The rates of another task."""
    return expert.roll(1, 0)


@torch.no_grad()
def rate_gates(model: MetaModel[Any], batches: Sequence[TaskBatch]) -> list[Gate]:
    """What constant rates and another task's cost: the fall of PLL, of `predict(x)` without sampling."""
    model.eval()
    costs = {
        "constant rates": (mean_over_tasks, RunningMoments()),
        "another task's rates": (next_task, RunningMoments()),
    }
    for batch in batches:
        tasks = model.embedded(batch.to(next(model.parameters()).device).to(next(model.parameters()).dtype))
        posterior, target = model.posterior_given(tasks.context), tasks.target.mask
        assert isinstance(posterior, DropoutPosterior)
        own = task_means(posterior.predict(tasks.x).log_prob(tasks.y), target)
        for change, moments in costs.values():
            other = posterior.changed(change).predict(tasks.x).log_prob(tasks.y)
            moments.add(own - task_means(other, target))
    return [Gate(name, moments.mean, moments.stderr, LEAST_COST) for name, (_, moments) in costs.items()]


@torch.no_grad()
def choice_gate(model: MetaModel[Any], batches: Sequence[TaskBatch], points: int = POINTS, seed: int = 0) -> Gate:
    """LL of all points after `points` of them, chosen by the model's own spread, less that of random ones."""
    model.eval()
    learner, gain = model_learner(model), RunningMoments()
    for chunk, batch in enumerate(batches):
        few = {part: getattr(batch, part)[:, ::EVERY] for part in ("x", "y", "is_context", "mask")}
        tasks = replace(batch, **few)
        order = random_order(tasks, points, seed, chunk)
        own = learn(learner, tasks, order[:, :1], points - 1).scores["LL"][:, -1]
        gain.add(own - follow(learner, tasks, order, [points]).scores["LL"][:, -1])
    return Gate("own choice", gain.mean, gain.stderr, LEAST_GAIN)


def verdict(name: str, gates: Sequence[Gate], rates: Sequence[float], floor: float) -> str:
    """What the numbers say of a model, in one or two sentences.

    >>> gates = [Gate("constant rates", 0.0005, 0.001, 0.1), Gate("spread follows", 0.9, 0.0, 0.8)]
    >>> verdict("gp", gates, [0.01, 0.01, 0.33], 0.01)
    'gp is a Bayesian last layer, not a dropout process: constant rates cost 0.00 nats. Fails: constant rates.'
    """
    failed = [gate.name for gate in gates if not gate.passed]
    by_name = {gate.name: gate for gate in gates}
    constant = by_name["constant rates"]
    idle = [rate < FLOOR_MARGIN * floor for rate in rates]
    if constant.passed:
        text = f"the rates matter: constant rates cost {constant.value:.2f} nats"
        follows = by_name.get("spread follows")
        if follows is not None and not follows.passed:
            text += f", but not the doubt: spread and exact standard deviation correlate by {follows.value:.2f}"
        text = f"{name}: {text}."
    else:
        what = "a Bayesian last layer" if all(idle[:-1]) and not idle[-1] else "a network with constant noise"
        what = "deterministic" if all(idle) else what
        text = f"{name} is {what}, not a dropout process: constant rates cost {constant.value:.2f} nats."
    return text + (f" Fails: {', '.join(failed)}." if failed else " Passes all gates.")


@torch.no_grad()
def gates(
    model: MetaModel[Any], batches: Sequence[TaskBatch], joint: dict[str, Any] | None, seed: int = 0
) -> dict[str, Any]:
    """All gates of a model on some tasks, and the verdict.

    Args:
        model: A regression model with dropout rates.
        batches: Tasks.
        joint: What `nvdp.evaluation.joint.joint_scores` returned for them; of GP functions it holds the correlation.
        seed: Of the random points and of samples.

    Returns:
        `gates` by name, `passed` and `verdict`.
    """
    some = model.posterior_given(model.embedded(batches[0].first(2)).context)
    if some.rates is None:
        raise InputError(f"--gates asks for the dropout rates of a model; {model.config.name} has none")
    answers = rate_gates(model, batches)
    if joint is not None and "spread_follows_oracle" in joint:
        follows = joint["spread_follows_oracle"] or 0.0  # None: a spread that never varies follows nothing
        answers.append(Gate("spread follows", follows, 0.0, LEAST_CORRELATION))
    if isinstance(batches[0], GPTaskBatch) and min(int(batch.mask.sum(-1).min()) for batch in batches) > POINTS * EVERY:
        answers.append(choice_gate(model, batches, seed=seed))
    rates = [float(rate) for rate in some.mean_rates().mean(0)]  # type: ignore[union-attr]
    return {
        "gates": {gate.name: gate.to_json() for gate in answers},
        "passed": all(gate.passed for gate in answers),
        "verdict": verdict(model.config.name, answers, rates, model.config.rates.floor),
    }
