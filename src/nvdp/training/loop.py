"""The training loop: one step, one schedule, one loop for runs, fits, pretraining and benchmarks.

A `Trainer` takes steps and yields after each; its callers stop, score, log and save. `train` is a run in a folder. It
resumes bit for bit, as every step derives its tasks and its noise from the seed and its number.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from nvdp.data.registry import task_source
from nvdp.data.source import TaskSource
from nvdp.errors import InputError
from nvdp.models.base import FeatureClassifier
from nvdp.models.gradient import GradientModel
from nvdp.models.registry import AnyModel, build_model
from nvdp.nn.compiled import engine_named, engine_of
from nvdp.nn.task_norm import TaskNorm
from nvdp.objectives import OBJECTIVES, KLScale
from nvdp.randomness import derived_generator
from nvdp.system import denormals_as_zero, keep_freed_memory, use_threads
from nvdp.tasks import TaskBatch
from nvdp.training.checkpoint import (
    Checkpoint,
    checkpoint_path,
    checkpoint_paths,
    load_newest_checkpoint,
    restore_state,
    save_checkpoint,
    state_tensors,
)
from nvdp.training.config import FULL_PRECISION, RunConfig, TrainingConfig, config_digest
from nvdp.training.distributed import CPU, Numbers, ProcessGroup, SingleProcess, check_shares, launch, processes_of
from nvdp.training.distributed import Machine as Machine
from nvdp.training.grow import start_from
from nvdp.training.optimizers import build_optimizer
from nvdp.training.pretrained_extractor import start_from_extractor
from nvdp.training.progress import StopRequest, TrainingProgress
from nvdp.training.run_folder import CHECKPOINTS, RunLog, has_log, only_process, save_model, start_run

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


@dataclass(frozen=True)
class Outcome:
    """How training in a folder ended."""

    step: int
    seconds: float
    stopped_by: int | None  # the signal's number, or None if all steps are done
    notes: tuple[str, ...] = ()
    skipped: int = 0  # steps whose bound or gradient was not finite
    engines: str = ""  # that computed the dropout layers, in turn, if there are any


def train_in_folder(trainer: Trainer, folder: Path, resume: bool, progress: bool, title: str) -> Outcome:
    """Take all steps of a run, with its log, checkpoints and progress bar; a signal saves and stops.

    Args:
        trainer: Before its first step.
        folder: Of the run, made by `start_run`.
        resume: Continue from the newest checkpoint, if there is one.
        progress: Show a bar.
        title: What the bar is called.

    Returns:
        The steps taken in all, and why training stopped.
    """
    settings, processes, place = trainer.settings, trainer.processes, folder / CHECKPOINTS
    digest = config_digest(settings)
    checkpoint, notes = load_newest_checkpoint(place, digest) if resume else (None, [])
    sums: Numbers = {}  # of the steps since the last row of the log
    before = 0.0
    engines: list[str] = []  # that computed the steps, in turn
    if checkpoint is None and resume and has_log(folder):
        notes.append("the run was ended before its first checkpoint and begins again at step 0")
    if checkpoint is not None:
        path = checkpoint_path(place, checkpoint.step)
        restore_state(path, checkpoint, trainer.model, trainer.optimizer)
        try:
            sums = {str(name): float(value) for name, value in checkpoint.numbers["sums"].items()}
            before = float(checkpoint.numbers["seconds"])
            trainer.resume_at(checkpoint.step, int(checkpoint.numbers["skipped"]))
            engines = [str(name) for name in checkpoint.numbers.get("engines", [])]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path} is no checkpoint of a run: {error}") from None
    if trainer.engine and engines[-1:] != [trainer.engine] and trainer.step < settings.steps:
        if checkpoint is not None:
            by = f"the engine {_in_turn(engines)}" if engines else "an earlier version"
            notes.append(
                f"steps up to {trainer.step} are by {by}, the others by {trainer.engine}: by rounding, "
                "the run differs from one without the interruption"
            )
        engines.append(trainer.engine)
    began, saved, stopped_by = time.monotonic(), trainer.step if checkpoint else -1, None

    def seconds() -> float:
        return before + time.monotonic() - began

    def save() -> None:
        if processes.rank == 0:
            numbers = {"sums": sums, "skipped": trainer.skipped, "seconds": seconds(), "engines": engines}
            tensors = state_tensors(trainer.model, trainer.optimizer)
            save_checkpoint(place, Checkpoint(trainer.step, tensors, numbers), digest)

    with (
        RunLog(folder, trainer.step) if processes.rank == 0 else nullcontext() as log,
        TrainingProgress(title, settings.steps, trainer.step, progress and processes.rank == 0) as bar,
        StopRequest(patient=processes.size > 1) as stop,
    ):
        if checkpoint is None and isinstance(settings, RunConfig) and settings.start is not None:
            save()  # so that the run goes on without what it began from, which may change
        for numbers in trainer.steps():
            bar.advance_to(trainer.step)
            for name, value in ({} if numbers is None else numbers | {"steps": 1.0}).items():
                sums[name] = sums.get(name, 0.0) + value
            if trainer.step % settings.log_every == 0 or trainer.step == settings.steps:
                row = _log_row(trainer, sums)
                if log is not None:
                    log.write(row | {"seconds": seconds()})
                bar.show(row)
                sums = {}
            if trainer.step % settings.checkpoint_every == 0:
                save()
                saved = trainer.step
            if trainer.step < settings.steps and (stopped_by := processes.any_signal(stop.signal)) is not None:
                break
        if trainer.step > saved:
            save()
    if trainer.skipped:
        notes.append(f"{trainer.skipped} of {trainer.step} steps were skipped: their bound or gradient was not finite")
    return Outcome(trainer.step, seconds(), stopped_by, tuple(notes), trainer.skipped, _in_turn(engines))


def _in_turn(engines: Sequence[str]) -> str:
    return ", then ".join(engines)


def _log_row(trainer: Trainer, sums: Numbers) -> Numbers:
    count = max(sums.get("steps", 0.0), 1.0)
    means = {name: sums.get(name, 0.0) / count for name in ("bound", "LL", "KL", "rate")}
    rate = learning_rate_at(trainer.settings, trainer.step - 1)
    return {"step": trainer.step, **means, "learning_rate": rate, "skipped": trainer.skipped}


def train(
    config: RunConfig,
    folder: Path,
    resume: bool = False,
    machine: Machine = Machine(),  # noqa: B008  (a frozen record)
    progress: bool = False,
) -> Outcome:
    """Train a model as configured and leave the run in `folder`.

    With several `machine.devices`, as many processes share the tasks of a step; the numbers are those of one process up
    to rounding. Processes that torchrun has started find each other.

    Args:
        config: Model, tasks and training.
        folder: A new one, or with `resume` that of a run to continue, bit for bit.
        resume: Continue the run in the folder; where there is none yet, begin it.
        machine: Devices, precision, threads and engine.
        progress: Show a bar on standard error.

    Returns:
        The steps taken in all, and why training stopped.
    """
    engine_named(machine.engine)  # refuses an unknown name
    source = task_source(config.task, config.data, episodes=config.episodes)
    source.training_batch(config.seed, 0, 1)  # refuses data that cannot be read before a folder is made
    normalised = any(isinstance(part, TaskNorm) for part in build_model(config.model).modules())
    check_shares(config.tasks_per_step, processes_of(machine), normalised)
    _first_model(config, folder, resume)  # refuses a start that does not fit before a folder is made
    prepare = partial(start_run, folder, config, resume)
    return launch(machine, prepare, _train, config, folder, resume, progress, machine)


def _first_model(config: RunConfig, folder: Path, resume: bool) -> AnyModel:
    """The model before its first step, or any of its shape for a run that goes on from a checkpoint."""
    begun = resume and checkpoint_paths(folder / CHECKPOINTS)
    return build_model(config.model, config.seed) if begun else initial_model(config)


def _train(
    config: RunConfig, folder: Path, resume: bool, progress: bool, machine: Machine, processes: ProcessGroup
) -> Outcome:
    """What each process of a run does."""
    keep_freed_memory()
    use_threads(machine.threads)
    source = task_source(config.task, config.data, episodes=config.episodes)
    model = _first_model(config, folder, resume)
    optimizer = build_optimizer(config.optimizer, model.parameters(), config.learning_rate, config.muon_rows)
    step_module = TrainingStep(model, config.objective, config.kl, machine.engine)
    module, optimizer = processes.setup(step_module, optimizer)

    def draw(step: int) -> TaskBatch:
        return source.training_batch(config.seed, step, config.tasks_per_step)

    with (
        only_process(folder) if processes.rank == 0 else nullcontext(),
        Prefetch(draw, config.steps) as batches,
    ):
        inputs = task_inputs(config, batches.take, processes)
        engine = engine_of(model, machine.engine, processes.device, machine.precision == FULL_PRECISION)
        trainer = Trainer(config, model, module, optimizer, inputs, processes, engine=engine)
        title = f"{config.model.name} on {config.task}"
        outcome = train_in_folder(trainer, folder, resume, progress, title)
        if outcome.step == config.steps and processes.rank == 0:
            save_model(folder, model, outcome.step)
    return outcome
