"""Training on tasks held in memory, for minutes instead of hours: as long as held-out tasks are predicted better.

Step, noise and optimizer are those of the trainer; its cosine is over steps or time, whichever is used up first. There
is no folder and no checkpoint: what is kept is the state that predicted the held-out tasks best.
"""

import copy
import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from nvdp.data.frames import Augmentation, FrameTasks
from nvdp.metrics import evaluate_regression
from nvdp.models.base import MetaModel
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model, model_spec
from nvdp.objectives import KLScale
from nvdp.runtime import keep_freed_memory
from nvdp.tasks import TaskBatch
from nvdp.training.config import DEFAULT_NVDP_KL, RunConfig
from nvdp.training.optimizers import build_optimizer
from nvdp.training.progress import TrainingProgress
from nvdp.training.step import TrainingStep, step_noise
from nvdp.training.stop import StopRequest

CHECKS = 40  # of the held-out tasks in a whole run
PATIENCE = 12  # checks without a better score before a run ends
SCORE_SAMPLES = 8
LOWEST_STD = 0.02  # σ of a prediction in units of all outputs: tables are often less noisy than the paper's tasks
SMALL, MEDIUM = 200, 2_000  # tasks from which on a model is made wider
AS_THEY_ARE = "as they are"
RECIPES = {  # what few tasks may need; which, their held-out ones say
    AS_THEY_ARE: Augmentation(),
    "jittered": Augmentation(jitter=0.03, shift=0.1, stretch=0.1),
    "moved": Augmentation(jitter=0.05, shift=0.4, stretch=0.3),
}


@dataclass(frozen=True)
class FitOutcome:
    """A fitted model and how it came about."""

    config: RunConfig
    model: MetaModel
    steps: int  # that were taken
    best_step: int
    score: float  # PLL of the held-out tasks, in standardised units
    recipe: str
    seconds: float


def model_for(name: str, x_dim: int, y_dim: int, tasks: int) -> ModelConfig:
    """An architecture whose size goes with the number of tasks.

    >>> model_for("nvdp", 1, 1, tasks=40).width, model_for("nvdp", 1, 1, tasks=5_000).width
    (48, 128)
    """
    width = 48 if tasks < SMALL else 64 if tasks < MEDIUM else 128
    layers = 3 if tasks < MEDIUM else 4
    return ModelConfig(
        name,
        x_dim,
        y_dim,
        min_std=LOWEST_STD,
        width=width,
        layers=layers,
        representation=width,
        encoder_layers=layers,
        rate_width=width,
        rate_layers=2,
        latent=width // 2,
        task_norm=name == "nvdp",
    )


def fit_config(model: ModelConfig, steps: int, seed: int) -> RunConfig:
    """The configuration of a fit, which is a run on the task csv."""
    return RunConfig(
        task="csv",
        model=model,
        objective=model_spec(model.name).objective,
        kl=DEFAULT_NVDP_KL if model.name == "nvdp" else KLScale("elbo", 1.0),
        steps=steps,
        learning_rate=2e-3 if model.width < 128 else 1e-3,
        warmup_steps=min(100, steps // 10),
        gradient_clip=1.0,
        seed=seed,
    )


def fit_tasks(
    config: RunConfig,
    training: FrameTasks,
    held_out: FrameTasks,
    seconds: float | None = None,
    try_recipes: bool = False,
    progress: bool = False,
) -> FitOutcome:
    """Train until the steps or the seconds are used up, or the held-out tasks gain nothing any more.

    With `try_recipes` each of `RECIPES` gets an equal part of steps and seconds, and the model that predicts the
    held-out tasks best is kept: a shorter trial would end before a recipe learns its tasks by heart. A limit in seconds
    makes the result depend on the machine's speed.
    """
    keep_freed_memory()
    scoring, began = held_out.all_contexts(config.seed), time.monotonic()
    recipes = RECIPES if try_recipes else {AS_THEY_ARE: RECIPES[AS_THEY_ARE]}
    share = replace(config, steps=max(1, config.steps // len(recipes)))
    outcomes = []
    for tried, (name, augmentation) in enumerate(recipes.items()):
        left = None if seconds is None else (seconds - (time.monotonic() - began)) / (len(recipes) - tried)
        outcomes.append(_fit(share, replace(training, augmentation=augmentation), scoring, left, name, progress))
    best = max(outcomes, key=lambda outcome: outcome.score)
    return replace(best, config=config, seconds=time.monotonic() - began)


def _fit(
    config: RunConfig, training: FrameTasks, scoring: TaskBatch, seconds: float | None, recipe: str, progress: bool
) -> FitOutcome:
    assert isinstance(config.model, ModelConfig)
    model = build_model(config.model, config.seed)
    module = TrainingStep(model, config.objective, config.kl)
    optimizer = build_optimizer(config.optimizer, model.parameters(), config.learning_rate)
    began, step, last_check, device = time.monotonic(), 0, 0.0, torch.device("cpu")
    best, best_step, kept, worse = -math.inf, 0, copy.deepcopy(model.state_dict()), 0
    with TrainingProgress(f"{config.model.name} on a table", 100, 0, progress) as bar, StopRequest() as stop:
        done = 0.0
        while done < 1 and worse < PATIENCE and stop.signal is None:
            warm = (step + 1) / max(1, config.warmup_steps)
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * min(warm, 0.5 * (1 + math.cos(math.pi * done)))
            tasks = training.training_batch(config.seed, step, config.tasks_per_step)
            noise = step_noise("fused", config.seed, step, device)
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
                score = held_out_score(model, scoring)
                bar.say(int(100 * done), f"held-out LL {score:.3f}")
                worse += 1
                if score > best:
                    best, best_step, kept, worse = score, step, copy.deepcopy(model.state_dict()), 0
    model.load_state_dict(kept)
    model.eval().requires_grad_(False)
    return FitOutcome(config, model, step, best_step, best, recipe, time.monotonic() - began)


def held_out_score(model: MetaModel, tasks: TaskBatch) -> float:
    """log E_q[p] of the targets of held-out tasks: what the predictive distribution is worth."""
    scores: Any = evaluate_regression(model, [tasks], SCORE_SAMPLES)["scores"]
    model.train()
    value = float(scores["PLL"]["log_expected"])
    return value if math.isfinite(value) else -math.inf
