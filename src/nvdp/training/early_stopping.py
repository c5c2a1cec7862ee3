"""Early stopping: training on tasks in memory for as long as held-out tasks are predicted better.

The cosine schedule follows steps or time, whichever is used up first. There is no folder and no checkpoint: the weights
that predicted the held-out tasks best are kept. Several candidates (model, regularisation, augmentation) may share the
time; the held-out tasks choose between them.
"""

import copy
import math
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from nvdp.data.source import TaskSource
from nvdp.system import chosen_device, keep_freed_memory
from nvdp.tasks import TaskBatch
from nvdp.training.config import RunConfig
from nvdp.training.loop import trainer_in_memory
from nvdp.training.progress import StopRequest, TrainingProgress

CHECKS = 40  # of the held-out tasks in a whole run
PATIENCE = 12  # checks without a better score before a run ends
LATE = 0.2  # the last part of a run, in which a large gain means that it ended too soon
SCORE_SAMPLES = 8
Score = Callable[[Any], float]  # of a model on held-out tasks; higher is better


@dataclass(frozen=True)
class Candidate:
    """One of several ways to fit: a configuration, and its training tasks."""

    name: str
    config: RunConfig
    source: TaskSource


@dataclass(frozen=True)
class FitOutcome:
    """A fitted model and how it was found."""

    config: RunConfig
    model: Any
    steps: int  # that were taken
    best_step: int
    score: float  # of the held-out tasks
    recipe: str
    seconds: float
    tried: dict[str, float]  # the score of every candidate
    late_gain: float = 0.0  # of the score in the last fifth of the run


@dataclass(frozen=True)
class Shown:
    """Where a fit takes place and what is shown of it."""

    progress: bool = False  # a bar for each candidate
    device: str = "cpu"
    score_shift: float = 0.0  # added to the score that is shown: −log spread gives it in the user's units


def fit_best(
    candidates: Sequence[Candidate],
    score: Score,
    seconds: float | None = None,
    shown: Shown = Shown(),  # noqa: B008  (a frozen record)
) -> FitOutcome:
    """The candidate whose model predicts the held-out tasks best; each gets an equal part of steps and seconds.

    Each is trained in full: a shorter trial would end before a candidate overfits. With a limit in seconds the result
    depends on the machine's speed. Ctrl-C and SIGTERM end it with nothing fitted.

    Args:
        candidates: What to choose from.
        score: Of a model on held-out tasks; higher is better.
        seconds: The time for all candidates together, or None for no limit.
        shown: The device, and what is shown while it lasts.

    Returns:
        The model with the best score, and the scores of all.
    """
    keep_freed_memory()
    began, outcomes = time.monotonic(), []
    with StopRequest() as stop:
        for tried, candidate in enumerate(candidates):
            left = None if seconds is None else (seconds - (time.monotonic() - began)) / (len(candidates) - tried)
            steps = max(1, candidate.config.steps // len(candidates))
            name = candidate.name if len(candidates) == 1 else f"{candidate.name} ({tried + 1} of {len(candidates)})"
            share = replace(candidate, config=replace(candidate.config, steps=steps))
            outcomes.append(_fit(share, name, score, left, shown, stop))
            if stop.signal is not None:
                raise KeyboardInterrupt if stop.signal == signal.SIGINT else SystemExit(128 + stop.signal)
    chosen = max(range(len(outcomes)), key=lambda index: outcomes[index].score)
    return replace(
        outcomes[chosen],
        config=candidates[chosen].config,
        seconds=time.monotonic() - began,
        tried={outcome.recipe: outcome.score for outcome in outcomes},
    )


def _fit(
    candidate: Candidate, name: str, score: Score, seconds: float | None, shown: Shown, stop: StopRequest
) -> FitOutcome:
    config, began = candidate.config, time.monotonic()

    def time_used() -> float:
        return 0.0 if seconds is None else (time.monotonic() - began) / max(seconds, 1e-9)

    trainer = trainer_in_memory(config, candidate.source, time_used, device=chosen_device(shown.device))
    model: Any = trainer.model
    best, best_step, kept, worse, last_check = -math.inf, 0, copy.deepcopy(model.state_dict()), 0, 0.0
    best_before_end = -math.inf
    with TrainingProgress(f"{config.model.name}, {name}", None, 0, shown.progress) as bar:
        for _ in trainer.steps():
            done = min(trainer.progress, 1.0)
            bar.advance_to(done)
            if done >= last_check + 1 / CHECKS or done == 1:
                last_check = done
                now = score(model.eval())
                model.train()
                bar.say(done, f"LL of held-out tasks {now + shown.score_shift:.3f}")
                worse += 1
                if now > best:
                    best, best_step, kept, worse = now, trainer.step, copy.deepcopy(model.state_dict()), 0
                if done <= 1 - LATE:
                    best_before_end = best
            if worse == PATIENCE or stop.signal is not None:
                break
    trainer.check_skipped(trainer.step // 2)
    model.load_state_dict(kept)
    model.cpu().eval().requires_grad_(False)
    gain = best - best_before_end if math.isfinite(best - best_before_end) else 0.0
    seconds_taken = time.monotonic() - began
    return FitOutcome(config, model, trainer.step, best_step, best, candidate.name, seconds_taken, {}, gain)


def held_out_score(batches: Sequence[TaskBatch]) -> Score:
    """log E_q[p] of the targets of held-out tasks, of numbers or of classes; every task has the same weight."""

    @torch.no_grad()
    def score(model: Any) -> float:
        tasks = []
        for batch in batches:
            log_prob = model.adapt(batch.context).components(batch.x, SCORE_SAMPLES).log_prob(batch.y).double()
            log_prob = log_prob.mean(-1) if log_prob.dim() == 3 else log_prob  # over outputs
            target = batch.target.mask.to(log_prob.device)
            tasks.append((log_prob * target).sum(1) / target.sum(1))
        value = float(torch.cat(tasks).mean())
        return value if math.isfinite(value) else -math.inf

    return score
