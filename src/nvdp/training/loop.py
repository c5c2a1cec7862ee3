"""The training loop: one step, one schedule, one loop for runs, fits, pretraining and benchmarks.

A `Trainer` takes steps and yields after each; its callers stop, score, log and save. Every step derives its tasks and
its noise from the seed and its number.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from nvdp.data.source import TaskSource
from nvdp.errors import InputError
from nvdp.models.base import FeatureClassifier
from nvdp.models.gradient import GradientModel
from nvdp.models.registry import AnyModel, build_model
from nvdp.nn.compiled import engine_named
from nvdp.objectives import OBJECTIVES, KLScale
from nvdp.randomness import derived_generator
from nvdp.system import denormals_as_zero
from nvdp.tasks import TaskBatch
from nvdp.training.config import RunConfig, TrainingConfig
from nvdp.training.distributed import CPU, Numbers, SingleProcess
from nvdp.training.grow import start_from
from nvdp.training.optimizers import build_optimizer
from nvdp.training.pretrained_extractor import start_from_extractor

MOST_SKIPPED = 100  # steps with a bound or gradient that is not finite before training gives up


def learning_rate_at(settings: TrainingConfig, step: int, progress: float | None = None) -> float:
    """The learning rate of a step: linear warm-up, then constant or half a cosine down to zero.

    Args:
        settings: Its learning rate, schedule, warm-up and number of steps.
        step: The number of steps taken so far.
        progress: Where on the cosine the step is, in [0, 1]; by default its place among the steps after the warm-up.

    Returns:
        The learning rate.

    >>> learning_rate_at(RunConfig(steps=100, warmup_steps=10, learning_rate=1.0), 4)
    0.5
    """
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.learning_rate
    if progress is None:
        progress = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))  # beyond its end it would rise


class TrainingStep(nn.Module):
    """The bound of a batch as the forward pass of a module, so that Fabric can wrap it."""

    def __init__(self, model: AnyModel, objective: str, scale: KLScale, engine: str = "compiled") -> None:
        super().__init__()
        self.model, self.objective, self.scale = model, OBJECTIVES[objective], scale
        model.engine = engine_named(engine)

    def forward(
        self, x: Tensor, y: Tensor, is_context: Tensor, mask: Tensor, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        """The bound and the numbers to log."""
        bound = self.objective(self.model, TaskBatch(x, y, is_context, mask), self.scale, generator)
        numbers = {"bound": bound.value, "LL": bound.log_likelihood.detach(), "KL": bound.kl.detach()}
        with torch.no_grad():
            rates = bound.posterior.mean_rates()
        if rates is not None:
            numbers["rate"] = rates.mean()
        return numbers


def initial_model(config: RunConfig) -> AnyModel:
    """The model of a run before its first step."""
    model = build_model(config.model, config.seed)
    if config.start is not None and config.episodes is not None and config.episodes.regime == "fine-tuned":
        assert isinstance(model, FeatureClassifier | GradientModel)
        start_from_extractor(model, config.start)
    elif config.start is not None:
        start_from(model, Path(config.start), config.seed)
    return model


@dataclass
class Trainer:
    """A model whose bound is maximised step by step.

    Args:
        settings: Steps, learning rate, schedule and clipping.
        model: The weights that are trained.
        module: Its forward pass returns "bound", a scalar to maximise, and numbers to log.
        optimizer: Of the model's parameters.
        inputs: The arguments of the module's forward pass, by the number of the step.
        processes: The process group; one process by default.
        time_used: Gives the fraction of the time budget that is used.
        step: Steps taken.
        skipped: Steps that changed nothing, as their bound or gradient was not finite.
        progress: The larger of the fractions of steps and of time; the schedule follows it.
        engine: Computes the dropout layers, if there are any; kept with checkpoints, as engines differ by rounding.
    """

    settings: TrainingConfig
    model: nn.Module
    module: nn.Module
    optimizer: Any
    inputs: Callable[[int], tuple[Any, ...]]
    processes: SingleProcess = field(default_factory=SingleProcess)
    time_used: Callable[[], float] | None = None
    step: int = 0
    skipped: int = 0
    progress: float = 0.0
    engine: str | None = None

    def steps(self) -> Iterator[Numbers | None]:
        """Take steps until the last one or the end of the time; yields the numbers of each, or None if skipped."""
        while self.progress < 1:
            yield self.take_step()

    def resume_at(self, step: int, skipped: int) -> None:
        """Go on from a step."""
        self.step, self.skipped, self.progress = step, skipped, step / self.settings.steps

    def take_step(self) -> Numbers | None:
        """One training step; its numbers, or None if it was skipped."""
        rate = learning_rate_at(self.settings, self.step, None if self.time_used is None else self.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with denormals_as_zero():
            own = self.module(*self.inputs(self.step))
            self.optimizer.zero_grad()
            numbers = self.processes.mean(own)
            taken = self._update(own["bound"]) if math.isfinite(numbers["bound"]) else False
        self.step += 1
        self.progress = max(self.step / self.settings.steps, 0.0 if self.time_used is None else self.time_used())
        if taken:
            return numbers
        self.skipped += 1
        self.check_skipped(min(MOST_SKIPPED, self.settings.steps // 2))
        return None

    def check_skipped(self, most: int) -> None:
        """Give up if more steps than that were skipped."""
        if self.skipped > most:
            raise InputError(
                f"{self.skipped} of {self.step} steps had a bound or gradient that is not finite; "
                "lower the learning rate"
            )

    def _update(self, bound: Tensor) -> bool:
        """Follow the gradient of a bound; False if it is not finite, and nothing changed."""
        self.processes.backward(-bound)
        largest = math.inf if self.settings.gradient_clip is None else self.settings.gradient_clip
        norm = self.processes.clip_gradients(self.module, self.optimizer, largest)
        finite = math.isfinite(norm.item())
        if finite:
            self.optimizer.step()
        return finite


def task_inputs(
    config: RunConfig, draw: Callable[[int], TaskBatch], processes: SingleProcess
) -> Callable[[int], tuple[Any, ...]]:
    """The inputs of `TrainingStep` by the number of the step: this process's share of the tasks and of the noise."""

    def inputs(step: int) -> tuple[Any, ...]:
        tasks = processes.share(draw(step))
        noise = processes.noise(derived_generator(config.seed, "noise", step, device=processes.device))
        return tasks.x, tasks.y, tasks.is_context, tasks.mask, noise

    return inputs


def trainer_in_memory(
    config: RunConfig,
    source: TaskSource,
    time_used: Callable[[], float] | None = None,
    engine: str = "compiled",
    device: torch.device = CPU,
) -> Trainer:
    """A trainer of a new model, without a folder.

    Args:
        config: Model, objective and schedule.
        source: The training tasks.
        time_used: The share of the allowed time that is used up, if time is limited.
        engine: How a step is computed.
        device: Where.

    Returns:
        The trainer, before its first step.
    """
    model, processes = initial_model(config).to(device), SingleProcess(device)
    module = TrainingStep(model, config.objective, config.kl, engine)
    optimizer = build_optimizer(config.optimizer, model.parameters(), config.learning_rate, config.muon_rows)

    def draw(step: int) -> TaskBatch:
        return source.training_batch(config.seed, step, config.tasks_per_step)

    return Trainer(config, model, module, optimizer, task_inputs(config, draw, processes), processes, time_used)


class Prefetch:
    """Draws the batch of the next step in a thread while a step is computed; a batch depends on its step alone."""

    def __init__(self, draw: Callable[[int], Any], stop: int) -> None:
        self._draw, self._stop = draw, stop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next: Future[Any] | None = None

    def take(self, step: int) -> Any:
        """The batch of this step, which follows the step asked for before."""
        batch = (self._next or self._thread.submit(self._draw, step)).result()
        self._next = self._thread.submit(self._draw, step + 1) if step + 1 < self._stop else None
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:  # earlier versions had these here
        if name in ("Machine", "Outcome", "train", "train_in_folder"):
            return getattr(import_module("nvdp.training.run"), name)
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
