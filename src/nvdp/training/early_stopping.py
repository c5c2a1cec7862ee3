"""Training on tasks held in memory, for minutes instead of hours: as long as held-out tasks are predicted better.

Step, noise, optimizer and the shape of the learning rate are the trainer's; half a cosine goes over steps or time,
whichever is used up first. There is no folder and no checkpoint: what is kept is the state that predicted the held-out
tasks best. Several candidates (model, regularisation, augmentation) may share the time; the held-out tasks choose.
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
from nvdp.evaluation.metrics import evaluate_regression
from nvdp.models.registry import build_model
from nvdp.randomness import derived_generator
from nvdp.system import keep_freed_memory
from nvdp.tasks import TaskBatch
from nvdp.training.config import RunConfig
from nvdp.training.loop import TrainingStep
from nvdp.training.optimizers import build_optimizer
from nvdp.training.progress import StopRequest, TrainingProgress

CHECKS = 40  # of the held-out tasks in a whole run
PATIENCE = 12  # checks without a better score before a run ends
SCORE_SAMPLES = 8
Score = Callable[[Any], float]  # of a model on held-out tasks; higher is better


@dataclass(frozen=True)
class Candidate:
    """One way to fit: a configuration, and the tasks as it is shown them."""

    name: str
    config: RunConfig
    source: TaskSource


@dataclass(frozen=True)
class FitOutcome:
    """A fitted model and how it came about."""

    config: RunConfig
    model: Any
    steps: int  # that were taken
    best_step: int
    score: float  # of the held-out tasks
    recipe: str
    seconds: float
    tried: dict[str, float]  # the score of every candidate


def fit_best(
    candidates: Sequence[Candidate], score: Score, seconds: float | None = None, progress: bool = False
) -> FitOutcome:
    """The candidate whose model predicts the held-out tasks best; each gets an equal part of steps and seconds.

    A shorter trial would end before a candidate learns its tasks by heart. A limit in seconds makes the result depend
    on the machine's speed. Ctrl-C and SIGTERM end it with nothing fitted.
    """
    keep_freed_memory()
    began, outcomes = time.monotonic(), []
    with StopRequest() as stop:
        for tried, candidate in enumerate(candidates):
            left = None if seconds is None else (seconds - (time.monotonic() - began)) / (len(candidates) - tried)
            steps = max(1, candidate.config.steps // len(candidates))
            share = replace(candidate, config=replace(candidate.config, steps=steps))
            outcomes.append(_fit(share, score, left, progress, stop))
            if stop.signal is not None:
                raise KeyboardInterrupt if stop.signal == signal.SIGINT else SystemExit(128 + stop.signal)
    chosen = max(range(len(outcomes)), key=lambda index: outcomes[index].score)
    return replace(
        outcomes[chosen],
        config=candidates[chosen].config,
        seconds=time.monotonic() - began,
        tried={outcome.recipe: outcome.score for outcome in outcomes},
    )


def _fit(candidate: Candidate, score: Score, seconds: float | None, progress: bool, stop: StopRequest) -> FitOutcome:
    config = candidate.config
    model: Any = build_model(config.model, config.seed)
    module = TrainingStep(model, config.objective, config.kl)
    optimizer = build_optimizer(config.optimizer, model.parameters(), config.learning_rate)
    began, step, last_check, device = time.monotonic(), 0, 0.0, torch.device("cpu")
    best, best_step, kept, worse = -math.inf, 0, copy.deepcopy(model.state_dict()), 0
    title = f"{config.model.name}, {candidate.name}"
    with TrainingProgress(title, 100, 0, progress) as bar:
        done = 0.0
        while done < 1 and worse < PATIENCE and stop.signal is None:
            warm = (step + 1) / max(1, config.warmup_steps)
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * min(warm, 0.5 * (1 + math.cos(math.pi * done)))
            tasks = candidate.source.training_batch(config.seed, step, config.tasks_per_step)
            noise = derived_generator(config.seed, "noise", step, device=device)
            bound = module(tasks.x, tasks.y, tasks.is_context, tasks.mask, noise)["bound"]
            optimizer.zero_grad()
            if math.isfinite(bound.item()):
                (-bound).backward()
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clip or math.inf)
                if math.isfinite(norm.item()):
                    optimizer.step()
            step += 1
            used = 0.0 if seconds is None else (time.monotonic() - began) / max(seconds, 1e-9)
            before, done = done, max(step / config.steps, used)
            for _ in range(int(100 * min(done, 1)) - int(100 * before)):
                bar.advance()
            if done >= last_check + 1 / CHECKS or done >= 1:
                last_check = done
                now = score(model.eval())
                model.train()
                bar.say(int(100 * done), f"held-out LL {now:.3f}")
                worse += 1
                if now > best:
                    best, best_step, kept, worse = now, step, copy.deepcopy(model.state_dict()), 0
    model.load_state_dict(kept)
    model.eval().requires_grad_(False)
    return FitOutcome(config, model, step, best_step, best, candidate.name, time.monotonic() - began, {})


def held_out_score(tasks: TaskBatch) -> Score:
    """log E_q[p] of the targets of held-out tasks: what the predictive distribution is worth."""

    def score(model: Any) -> float:
        scores: Any = evaluate_regression(model, [tasks], SCORE_SAMPLES)["scores"]
        value = float(scores["PLL"]["log_expected"])
        return value if math.isfinite(value) else -math.inf

    return score
