"""Tasks drawn ahead: while a step is computed, a thread draws the tasks of the next one."""

import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from lightning_fabric import Fabric
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nvdp.data.registry import task_source
from nvdp.data.source import TaskSource
from nvdp.errors import InputError
from nvdp.models.nvdp import NVDP, NVDPClassifier
from nvdp.models.registry import AnyModel, build_model
from nvdp.nn.fused import engine_named
from nvdp.nn.task_norm import TaskNorm
from nvdp.objectives import OBJECTIVES, KLScale
from nvdp.randomness import derived_generator
from nvdp.system import keep_freed_memory, remove_unfinished, use_threads
from nvdp.tasks import TaskBatch
from nvdp.training.checkpoint import (
    Checkpoint,
    check_shapes,
    checkpoint_path,
    load_newest_checkpoint,
    save_checkpoint,
    with_prefix,
)
from nvdp.training.config import RunConfig
from nvdp.training.distributed import Crew, check_shares, launch, started_from_outside, strategy_for
from nvdp.training.optimizers import build_optimizer
from nvdp.training.progress import StopRequest, TrainingProgress
from nvdp.training.run_folder import CHECKPOINTS, RunLog, only_process, save_model, start_run


class Prefetch:
    """Gives the tasks of consecutive steps. Each step's tasks depend on its number alone, so order cannot matter."""

    def __init__(self, draw: Callable[[int], TaskBatch], start: int, stop: int) -> None:
        self._draw, self._stop = draw, stop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tasks")
        self._next: Future[TaskBatch] = self._thread.submit(draw, start)

    def take(self, step: int) -> TaskBatch:
        """The tasks of this step; drawing those of the next one begins."""
        tasks = self._next.result()
        if step + 1 < self._stop:
            self._next = self._thread.submit(self._draw, step + 1)
        return tasks

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)


class TrainingStep(nn.Module):
    """The bound of a batch as the forward pass of a module, so that Fabric can wrap it."""

    def __init__(self, model: AnyModel, objective: str, scale: KLScale, engine: str = "fused") -> None:
        super().__init__()
        self.model, self.objective, self.scale = model, OBJECTIVES[objective], scale
        if isinstance(model, NVDP | NVDPClassifier):
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


MOST_SKIPPED = 100  # steps with a bound or gradient that is not finite before a run gives up
Sums = dict[str, float]


@dataclass(frozen=True)
class Machine:
    """Where a run takes place: Fabric's own flags, the number of threads, and how a step is computed."""

    device: str = "auto"
    devices: int = 1
    precision: str = "32-true"
    threads: int | None = None
    engine: str = "fused"  # or autograd: how a step is computed


@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended."""

    step: int
    seconds: float
    stopped_by: int | None  # the signal's number, or None if all steps are done
    notes: tuple[str, ...] = ()
    skipped: int = 0  # steps whose bound or gradient was not finite


def learning_rate_at(config: RunConfig, step: int) -> float:
    """The learning rate of a step: linear warm-up, then constant or half a cosine down to zero.

    >>> learning_rate_at(RunConfig(steps=100, warmup_steps=10, learning_rate=1.0), 4)
    0.5
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def train(
    config: RunConfig,
    folder: Path,
    resume: bool = False,
    machine: Machine = Machine(),  # noqa: B008  (a frozen record)
    progress: bool = False,
) -> Outcome:
    """Train a model as configured and leave the run in `folder`; with `resume` go on bit for bit.

    With several `machine.devices` the tasks of a step are shared by as many processes, which Fabric starts; the numbers
    are those of one process up to rounding. Processes started by torchrun find each other.
    """
    engine_named(machine.engine)  # an unknown name is refused before anything else is done
    found = started_from_outside()
    processes = int(os.environ["WORLD_SIZE"]) if found else machine.devices
    source = task_source(config.task, config.data, episodes=config.episodes)
    source.training_batch(config.seed, 0, 1)  # data that cannot be read is told before a folder is made
    model = build_model(config.model, config.seed)
    normalised = any(isinstance(part, TaskNorm) for part in model.modules())
    check_shares(config.tasks_per_step, processes, normalised)
    fabric = _fabric(machine, processes, found)
    if processes > 1 and not found:
        start_run(folder, config, resume)
        return launch(fabric, _member, config, folder, resume, progress, machine)
    fabric.launch()
    if fabric.global_rank == 0:
        start_run(folder, config, resume)
    fabric.barrier()
    return _work(config, folder, resume, progress, machine, model, source, fabric)


def _member(config: RunConfig, folder: Path, resume: bool, progress: bool, machine: Machine, fabric: Fabric) -> Outcome:
    """What each of several processes does."""
    model, source = (
        build_model(config.model, config.seed),
        task_source(config.task, config.data, episodes=config.episodes),
    )
    return _work(config, folder, resume, progress, machine, model, source, fabric)


def _work(
    config: RunConfig,
    folder: Path,
    resume: bool,
    progress: bool,
    machine: Machine,
    model: AnyModel,
    source: TaskSource,
    fabric: Fabric,
) -> Outcome:
    keep_freed_memory()
    use_threads(machine.threads)
    crew = Crew(fabric)
    with only_process(folder) if crew.first else nullcontext():
        if crew.first:
            remove_unfinished(folder)
            remove_unfinished(folder / CHECKPOINTS)
        return _train(config, folder, resume, progress and crew.first, crew, model, source, machine.engine)


def _train(
    config: RunConfig,
    folder: Path,
    resume: bool,
    progress: bool,
    crew: Crew,
    model: AnyModel,
    source: TaskSource,
    engine: str,
) -> Outcome:
    fabric = crew.fabric
    crew.prepare(model)
    optimizer = build_optimizer(config.optimizer, model.parameters(), config.learning_rate)
    step_module, optimizer = fabric.setup(TrainingStep(model, config.objective, config.kl, engine), optimizer)
    average = (
        AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(config.weight_average), use_buffers=True)
        if config.weight_average
        else None
    )
    checkpoint, notes = load_newest_checkpoint(folder / CHECKPOINTS) if resume else (None, [])
    step, sums, skipped, before = _restore(folder, checkpoint, model, optimizer, average)
    began = time.monotonic()

    def save() -> None:
        if not crew.first:
            return
        numbers = {"sums": sums, "skipped": skipped, "seconds": before + time.monotonic() - began}
        tensors = with_prefix("model", dict(model.state_dict()))
        tensors |= with_prefix("optimizer", dict(_optimizer_tensors(optimizer)))
        if average is not None:
            tensors |= with_prefix("average", dict(average.state_dict()))
        save_checkpoint(folder / CHECKPOINTS, Checkpoint(step, tensors, numbers))

    def draw(step: int) -> TaskBatch:
        return source.training_batch(config.seed, step, config.tasks_per_step)

    title = f"{config.model.name} on {config.task}"
    with (
        Prefetch(draw, step, config.steps) as prefetch,
        RunLog(folder, step) if crew.first else nullcontext() as log,
        TrainingProgress(title, config.steps, step, progress) as bar,
        StopRequest(patient=crew.size > 1) as stop,
    ):
        stopped_by = None
        while step < config.steps and (stopped_by := crew.stopped(stop.signal)) is None:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(config, step)
            tasks = crew.share(prefetch.take(step)).to(fabric.device)
            noise = crew.noise(derived_generator(config.seed, "noise", step, device=fabric.device))
            own = step_module(tasks.x, tasks.y, tasks.is_context, tasks.mask, noise)

            optimizer.zero_grad()
            numbers = crew.together(own)
            finite = math.isfinite(numbers["bound"])
            if finite:
                fabric.backward(-own["bound"])
                most = math.inf if config.gradient_clip is None else config.gradient_clip
                norm = fabric.clip_gradients(step_module, optimizer, max_norm=most, error_if_nonfinite=False)
                finite = norm is None or math.isfinite(norm.item())
            if finite:
                optimizer.step()
                if average is not None:
                    average.update_parameters(model)
                for name, value in numbers.items():
                    sums[name] = sums.get(name, 0.0) + value
                sums["steps"] = sums.get("steps", 0.0) + 1
            else:
                skipped += 1
                if skipped > MOST_SKIPPED:
                    raise InputError(
                        f"{skipped} of {step + 1} steps had a bound or gradient that is not finite; "
                        "lower the learning rate"
                    )
            step += 1
            bar.advance()

            if step % config.log_every == 0 or step == config.steps:
                row = _row(step, sums, learning_rate_at(config, step - 1), skipped)
                if log is not None:
                    log.write(row | {"seconds": before + time.monotonic() - began})
                bar.show(row)
                sums = {}
            if step % config.checkpoint_every == 0:
                save()
        if checkpoint is None or step > checkpoint.step:
            save()
    if step == config.steps and crew.first:
        save_model(folder, model if average is None else average.module, step)
    if skipped:
        notes = [*notes, f"{skipped} of {step} steps were skipped: their bound or gradient was not finite"]
    return Outcome(step, before + time.monotonic() - began, stopped_by, tuple(notes), skipped)


def _fabric(machine: Machine, processes: int, found: int) -> Fabric:
    devices = found or machine.devices
    try:
        return Fabric(
            accelerator=machine.device,
            devices=devices,
            num_nodes=processes // devices,
            strategy=strategy_for(processes, found > 0),
            precision=machine.precision,  # type: ignore[arg-type]
        )
    except (RuntimeError, ValueError, TypeError, MisconfigurationException) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"cannot use {devices} × {machine.device}, {machine.precision}: {reason}") from None


def _row(step: int, sums: Sums, learning_rate: float, skipped: int) -> dict[str, float]:
    count = max(sums.get("steps", 0.0), 1.0)
    means = {name: sums.get(name, 0.0) / count for name in ("bound", "LL", "KL", "rate")}
    return {"step": step, **means, "learning_rate": learning_rate, "skipped": skipped}


def _optimizer_tensors(optimizer: Any) -> Iterator[tuple[str, Tensor]]:
    for index, state in optimizer.state_dict()["state"].items():
        for name, tensor in state.items():
            yield f"{index}/{name}", tensor


def _restore(
    folder: Path, checkpoint: Checkpoint | None, model: AnyModel, optimizer: Any, average: AveragedModel | None
) -> tuple[int, Sums, int, float]:
    if checkpoint is None:
        return 0, {}, 0, 0.0
    path = checkpoint_path(folder / CHECKPOINTS, checkpoint.step)
    for name, module in (("model", model), ("average", average)):
        if module is not None:
            check_shapes(path, dict(module.state_dict()), checkpoint.part(name))
            module.load_state_dict(checkpoint.part(name))
    state: dict[int, dict[str, Tensor]] = {}
    parameters = list(model.parameters())
    numbers = checkpoint.numbers
    try:
        for key, tensor in checkpoint.part("optimizer").items():
            index, name = key.split("/")
            state.setdefault(int(index), {})[name] = tensor
            if tensor.shape not in (parameters[int(index)].shape, ()):
                raise ValueError(f"'{key}' has shape {tuple(tensor.shape)}")
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        for place, parameter in enumerate(parameters):  # which takes NAdam's running product to the weights' precision
            if "mu_product" in state.get(place, {}):
                optimizer.state[parameter]["mu_product"] = state[place]["mu_product"].to(parameter.device)
        sums = {str(name): float(value) for name, value in numbers["sums"].items()}
        return checkpoint.step, sums, int(numbers["skipped"]), float(numbers["seconds"])
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} does not fit its configuration: {error}") from None
