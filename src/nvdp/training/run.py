"""A run in a folder: logs, checkpoints, resuming, and the processes that share it.

A run resumes bit for bit, as every step derives its tasks and its noise from the seed and its number.
"""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nvdp.data.registry import task_source
from nvdp.errors import InputError
from nvdp.models.registry import AnyModel, build_model
from nvdp.nn.compiled import engine_named, engine_of
from nvdp.nn.task_norm import TaskNorm
from nvdp.system import keep_freed_memory, use_threads
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
from nvdp.training.config import FULL_PRECISION, RunConfig, config_digest
from nvdp.training.distributed import Machine as Machine
from nvdp.training.distributed import Numbers, ProcessGroup, check_shares, launch, processes_of
from nvdp.training.loop import Prefetch, Trainer, TrainingStep, initial_model, learning_rate_at, task_inputs
from nvdp.training.optimizers import build_optimizer
from nvdp.training.progress import StopRequest, TrainingProgress
from nvdp.training.run_folder import CHECKPOINTS, RunLog, has_log, only_process, save_model, start_run


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
