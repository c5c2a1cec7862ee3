"""The training loop, read from top to bottom: one step, one log row, one checkpoint, on Lightning Fabric."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nvdp.data.registry import task_source
from nvdp.data.source import TaskSource
from nvdp.errors import InputError
from nvdp.models.registry import AnyModel, build_model
from nvdp.runtime import keep_freed_memory, use_threads
from nvdp.tasks import TaskBatch
from nvdp.training.checkpoint import Checkpoint, load_newest_checkpoint, save_checkpoint, with_prefix
from nvdp.training.config import RunConfig
from nvdp.training.lock import only_process
from nvdp.training.log import RunLog
from nvdp.training.optimizers import build_optimizer
from nvdp.training.prefetch import Prefetch
from nvdp.training.progress import TrainingProgress
from nvdp.training.run_folder import CHECKPOINTS, save_model, start_run
from nvdp.training.step import TrainingStep, check_engine, step_noise
from nvdp.training.stop import StopRequest

MOST_SKIPPED = 100  # steps with a bound or gradient that is not finite before a run gives up
Sums = dict[str, float]


@dataclass(frozen=True)
class Machine:
    """Where a run takes place: Fabric's own flags, the number of threads, and how a step is computed."""

    device: str = "auto"
    devices: int = 1
    precision: str = "32-true"
    threads: int | None = None
    engine: str = "fused"  # or autograd, compiled: how a step is computed


@dataclass(frozen=True)
class Outcome:
    """How a call of `train` ended."""

    step: int
    seconds: float
    stopped_by: int | None  # the signal's number, or None if all steps are done
    notes: tuple[str, ...] = ()


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
    """Train a model as configured and leave the run in `folder`; with `resume` go on bit for bit."""
    if machine.devices != 1:
        raise InputError(f"--devices is {machine.devices}; a run uses one device or process so far")
    check_engine(machine.engine)
    source = task_source(config.task, config.data, episodes=config.episodes)
    source.training_batch(config.seed, 0, 1)  # data that cannot be read is told before a folder is made
    model = build_model(config.model, config.seed)
    keep_freed_memory()
    use_threads(machine.threads)
    fabric = _fabric(machine)
    start_run(folder, config, resume)
    with only_process(folder):
        return _train(config, folder, resume, progress, fabric, model, source, machine.engine)


def _train(
    config: RunConfig,
    folder: Path,
    resume: bool,
    progress: bool,
    fabric: Fabric,
    model: AnyModel,
    source: TaskSource,
    engine: str,
) -> Outcome:
    fabric.launch()
    optimizer = build_optimizer(config.optimizer, model.parameters(), config.learning_rate)
    step_module, optimizer = fabric.setup(TrainingStep(model, config.objective, config.kl, engine), optimizer)
    average = (
        AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(config.weight_average), use_buffers=True)
        if config.weight_average
        else None
    )
    checkpoint, notes = load_newest_checkpoint(folder / CHECKPOINTS) if resume else (None, [])
    step, sums, skipped, before = _restore(checkpoint, model, optimizer, average)
    began = time.monotonic()

    def save() -> None:
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
        RunLog(folder, step) as log,
        TrainingProgress(title, config.steps, step, progress) as bar,
        StopRequest() as stop,
    ):
        while step < config.steps and stop.signal is None:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(config, step)
            tasks = prefetch.take(step).to(fabric.device)
            noise = step_noise(engine, config.seed, step, fabric.device)
            numbers = step_module(tasks.x, tasks.y, tasks.is_context, tasks.mask, noise)

            optimizer.zero_grad()
            finite = math.isfinite(numbers["bound"].item())
            if finite:
                fabric.backward(-numbers["bound"])
                most = math.inf if config.gradient_clip is None else config.gradient_clip
                norm = fabric.clip_gradients(step_module, optimizer, max_norm=most, error_if_nonfinite=False)
                finite = norm is None or math.isfinite(norm.item())
            if finite:
                optimizer.step()
                if average is not None:
                    average.update_parameters(model)
                for name, value in numbers.items():
                    sums[name] = sums.get(name, 0.0) + value.item()
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
                log.write(row | {"seconds": before + time.monotonic() - began})
                bar.show(row)
                sums = {}
            if step % config.checkpoint_every == 0:
                save()
        if checkpoint is None or step > checkpoint.step:
            save()
    if step == config.steps:
        save_model(folder, model if average is None else average.module, step)
    stopped_by = stop.signal if step < config.steps else None
    return Outcome(step, before + time.monotonic() - began, stopped_by, tuple(notes))


def _fabric(machine: Machine) -> Fabric:
    try:
        return Fabric(accelerator=machine.device, devices=machine.devices, precision=machine.precision)  # type: ignore[arg-type]
    except (RuntimeError, ValueError, TypeError, MisconfigurationException) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"cannot use {machine.devices} × {machine.device}, {machine.precision}: {reason}") from None


def _row(step: int, sums: Sums, learning_rate: float, skipped: int) -> dict[str, float]:
    count = max(sums.get("steps", 0.0), 1.0)
    means = {name: sums.get(name, 0.0) / count for name in ("bound", "LL", "KL", "rate")}
    return {"step": step, **means, "learning_rate": learning_rate, "skipped": skipped}


def _optimizer_tensors(optimizer: Any) -> Iterator[tuple[str, Tensor]]:
    for index, state in optimizer.state_dict()["state"].items():
        for name, tensor in state.items():
            yield f"{index}/{name}", tensor


def _restore(
    checkpoint: Checkpoint | None, model: AnyModel, optimizer: Any, average: AveragedModel | None
) -> tuple[int, Sums, int, float]:
    if checkpoint is None:
        return 0, {}, 0, 0.0
    model.load_state_dict(checkpoint.part("model"))
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in checkpoint.part("optimizer").items():
        index, name = key.split("/")
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    if average is not None:
        average.load_state_dict(checkpoint.part("average"))
    numbers = checkpoint.numbers
    return checkpoint.step, dict(numbers["sums"]), int(numbers["skipped"]), float(numbers["seconds"])
