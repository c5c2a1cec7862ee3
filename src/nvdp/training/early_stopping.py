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
CHECKING = 0.25  # most of the time that checks may take
PATIENCE = 12  # checks without a better score before a run ends
LATE = 0.2  # the last part of a run, in which a large gain means that it ended too soon
SCORE_SAMPLES = 8
TRIALS = 0.5  # share of the time in which several candidates are tried; the best one goes on with the rest
AGAIN = 0.5  # times the learning rate when it goes on
Clock = Callable[[], float]
Score = Callable[[Any], float]  # of a model on held-out tasks; higher is better


@dataclass(frozen=True)
class Candidate:
    """One of several ways to fit: a configuration, and its training tasks."""

    name: str
    config: RunConfig
    source: TaskSource
    patience: int = PATIENCE  # checks without a better score before it ends
    score: Score | None = None  # of the held-out tasks as this candidate sees them


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
    clock: Clock = time.monotonic  # what seconds are measured by; a benchmark on a busy machine: time.process_time


def fit_best(
    candidates: Sequence[Candidate],
    score: Score,
    seconds: float | None = None,
    shown: Shown = Shown(),  # noqa: B008  (a frozen record)
) -> FitOutcome:
    """The candidate whose model predicts the held-out tasks best.

    All candidates together get half of the steps and seconds, in equal parts, each with its whole schedule: a trial cut
    short would end before a candidate overfits. The best one goes on from its weights with the other half. With a
    limit in seconds the result depends on the machine's speed. Ctrl-C and SIGTERM end it with nothing fitted.

    Args:
        candidates: What to choose from.
        score: Of a model on held-out tasks; higher is better.
        seconds: The time for all candidates together, or None for no limit.
        shown: The device, and what is shown while it lasts.

    Returns:
        The model with the best score, and the scores of all.
    """
    keep_freed_memory()
    began, count = shown.clock(), len(candidates)
    trials = 1.0 if count == 1 else TRIALS

    def run(index: int, share: float, kept: FitOutcome | None = None) -> FitOutcome:
        candidate = candidates[index]
        steps = max(1, int(share * candidate.config.steps))
        part = replace(candidate, config=replace(candidate.config, steps=steps), score=candidate.score or score)
        turn = "" if count == 1 else " (goes on)" if kept else f" ({index + 1} of {count})"
        outcome = _fit(part, turn, None if seconds is None else share * seconds, shown, stop, kept)
        if stop.signal is not None:
            raise KeyboardInterrupt if stop.signal == signal.SIGINT else SystemExit(128 + stop.signal)
        return outcome

    with StopRequest() as stop:
        outcomes = [run(index, trials / count) for index in range(count)]
        chosen = max(range(count), key=lambda index: outcomes[index].score)
        best = outcomes[chosen] if count == 1 else run(chosen, 1 - trials, outcomes[chosen])
    return replace(
        best,
        config=candidates[chosen].config,
        seconds=shown.clock() - began,
        tried={outcome.recipe: outcome.score for outcome in outcomes},
    )


def _fit(
    candidate: Candidate,
    turn: str,
    seconds: float | None,
    shown: Shown,
    stop: StopRequest,
    kept_from: FitOutcome | None = None,
) -> FitOutcome:
    """Train a candidate; with `kept_from`, go on from those weights at a lower rate."""
    config, score, began = candidate.config, candidate.score, shown.clock()
    assert score is not None
    if kept_from is not None:
        config = replace(config, learning_rate=AGAIN * config.learning_rate, seed=config.seed + 1)  # other tasks

    def time_used() -> float:
        return 0.0 if seconds is None else (shown.clock() - began) / max(seconds, 1e-9)

    trainer = trainer_in_memory(config, candidate.source, time_used, device=chosen_device(shown.device))
    model: Any = trainer.model
    best, best_step, before = -math.inf, 0, 0
    if kept_from is not None:
        model.load_state_dict(kept_from.model.state_dict())
        best, best_step, before = kept_from.score, kept_from.best_step, kept_from.steps
    checking = 0.0  # seconds
    kept, worse, last_check = copy.deepcopy(model.state_dict()), 0, 0.0
    best_before_end = best
    title = candidate.name if candidate.name.startswith(config.model.name) else f"{config.model.name}, {candidate.name}"
    with TrainingProgress(f"{title}{turn}", None, 0, shown.progress) as bar:
        for _ in trainer.steps():
            done = min(trainer.progress, 1.0)
            bar.advance_to(done)
            affordable = checking <= CHECKING * (shown.clock() - began)
            if (done >= last_check + 1 / CHECKS and affordable) or done == 1:
                last_check, started = done, shown.clock()
                now = score(model.eval())
                checking += shown.clock() - started
                model.train()
                bar.say(done, f"LL of held-out tasks {now + shown.score_shift:.3f}")
                worse += 1
                if now > best:
                    best, best_step, kept, worse = now, before + trainer.step, copy.deepcopy(model.state_dict()), 0
                if done <= 1 - LATE:
                    best_before_end = best
            if worse == candidate.patience or stop.signal is not None:
                break
    trainer.check_skipped(trainer.step // 2)
    model.load_state_dict(kept)
    model.cpu().eval().requires_grad_(False)
    gain = best - best_before_end if math.isfinite(best - best_before_end) else 0.0
    seconds_taken = shown.clock() - began
    return FitOutcome(config, model, before + trainer.step, best_step, best, candidate.name, seconds_taken, {}, gain)


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
