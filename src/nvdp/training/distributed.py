"""Several processes on one run: each computes the bound of its share of a step's tasks, gradients are averaged.

A run is defined by all tasks of a step, not by who computes them: every process draws the whole batch and the whole
noise of a step and takes its own part, and normalisation over tasks uses the statistics of all. So a run comes to the
same numbers, up to rounding, with any number of processes, and may go on with another.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any

import torch
import torch.distributed
from jaxtyping import Float
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from nvdp.errors import InputError
from nvdp.nn.task_norm import TaskNorm
from nvdp.randomness import ShareOfNoise
from nvdp.tasks import TaskBatch

Numbers = dict[str, float]


@dataclass(frozen=True)
class Crew:
    """The processes of a run, as one of them sees them; a run of one process is a crew of one."""

    fabric: Fabric

    @property
    def size(self) -> int:
        """How many there are."""
        return self.fabric.world_size

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and shows progress."""
        return self.fabric.global_rank == 0

    def prepare(self, module: nn.Module) -> None:
        """Let normalisation over tasks see the tasks of all processes."""
        for part in module.modules():
            if self.size > 1 and isinstance(part, TaskNorm):
                part.moments = moments_over_processes

    def share(self, tasks: TaskBatch) -> TaskBatch:
        """The tasks of this process."""
        if self.size == 1:
            return tasks
        own = len(tasks) // self.size
        part = slice(self.fabric.global_rank * own, (self.fabric.global_rank + 1) * own)
        return TaskBatch(tasks.x[part], tasks.y[part], tasks.is_context[part], tasks.mask[part])

    def noise(self, generator: torch.Generator | None) -> torch.Generator | None:
        """A step's noise, of which each process uses its own part."""
        if self.size == 1 or generator is None:
            return generator
        return ShareOfNoise.of(generator, self.fabric.global_rank, self.size)

    def together(self, numbers: dict[str, Tensor]) -> Numbers:
        """The means over processes; one that is not finite makes the mean so, and all skip the step."""
        if self.size == 1:
            return {name: value.item() for name, value in numbers.items()}
        values = torch.stack([value.detach().double() for value in numbers.values()]) / self.size
        torch.distributed.all_reduce(values)
        return dict(zip(numbers, values.tolist(), strict=True))

    def stopped(self, number: int | None) -> int | None:
        """The signal that any of the processes was sent: all end after the same step."""
        if self.size == 1:
            return number
        asked = torch.tensor(number or 0, device=self.fabric.device)
        torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)
        return int(asked) or None


class _SumOverProcesses(torch.autograd.Function):
    """Σ over processes; whatever depends on the sum in any process sends its gradient back to all."""

    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        values = values.clone()
        torch.distributed.all_reduce(values)
        return values

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Tensor:
        gradient = gradients[0].contiguous().clone()
        torch.distributed.all_reduce(gradient)
        return gradient


def moments_over_processes(r: Float[Tensor, "task r"]) -> tuple[Float[Tensor, " r"], Float[Tensor, " r"]]:
    """Variance and mean over the tasks of all processes, each of which has as many."""
    tasks = len(r) * torch.distributed.get_world_size()
    mean = _SumOverProcesses.apply(r.sum(0)) / tasks
    return _SumOverProcesses.apply((r - mean).square().sum(0)) / tasks, mean


def started_from_outside() -> int:
    """How many processes of this run torchrun, or a scheduler through it, has started on this machine; 0 if none."""
    found = torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()
    return int(os.environ["LOCAL_WORLD_SIZE"]) if found else 0


def strategy_for(processes: int, from_outside: bool) -> str | DDPStrategy:
    """Fabric's strategy: none for one process, otherwise data parallel in processes that it starts, or finds."""
    if processes == 1:
        return "auto"
    if from_outside:
        return DDPStrategy()
    # Forked from a server that has imported everything once; not where a GPU is in use already, or on Windows.
    forks = "forkserver" in multiprocessing.get_all_start_methods() and not torch.cuda.is_initialized()
    return DDPStrategy(start_method="forkserver" if forks else "spawn")


def check_shares(tasks: int, processes: int, normalised: bool) -> None:
    """Refuse a number of processes among which a step's tasks cannot be shared alike."""
    if processes < 1:
        raise InputError(f"--devices is {processes}; expected at least 1")
    if tasks % processes:
        raise InputError(f"{tasks} tasks a step cannot be shared alike among {processes} processes")
    if normalised and processes > 1 and tasks < 2 * processes:
        raise InputError(
            f"normalisation over tasks needs at least 2 tasks a step and process; got {tasks} for {processes}"
        )


def launch(fabric: Fabric, member: Callable[..., Any], *arguments: Any) -> Any:
    """Run `member` in every process, Fabric as its last argument, and return what the first one returns.

    A process that dies ends all. Ctrl-C and SIGTERM are passed on, so that all finish the step in hand together.
    """
    start_method = fabric.strategy._start_method  # type: ignore[attr-defined]
    context = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        context.set_forkserver_preload(["nvdp.training.loop"])
    reasons = context.SimpleQueue()
    before = os.environ.get("MASTER_PORT")
    try:
        with _signals_passed_on() as seen:
            work = partial(member, *arguments)
            outcome = fabric.launch(_member, work, reasons, dict(os.environ)).value  # type: ignore[arg-type]
    except (ProcessExitedException, ProcessRaisedException) as error:
        if not reasons.empty():  # what one process had to say; the others only lost it
            raise InputError(reasons.get()) from None
        if isinstance(error, ProcessExitedException):
            how = error.signal_name or f"code {error.exit_code}"
            raise InputError(
                f"process {error.error_index + 1} of {fabric.world_size} ended by {how}, and the run with it; "
                "--resume goes on from the last checkpoint, with any --devices"
            ) from None
        if "Connection closed by peer" in str(error) or "Connection reset by peer" in str(error):
            raise InputError(
                f"one of the {fabric.world_size} processes is gone, and the run with it; "
                "--resume goes on from the last checkpoint, with any --devices"
            ) from None
        raise
    finally:
        os.environ.pop("MASTER_PORT", None)  # Fabric leaves it for the next run to trip over
        if before is not None:
            os.environ["MASTER_PORT"] = before
    return replace(outcome, stopped_by=seen[0]) if seen and outcome.stopped_by is not None else outcome


class _Result:
    """What a process returns; Fabric looks for tensors in anything that it knows how to open."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _member(fabric: Fabric, member: Callable[[Fabric], Any], reasons: Any, environment: dict[str, str]) -> _Result:
    os.environ.update(environment)  # a server that forks knows that of its own start
    try:
        return _Result(member(fabric))
    except InputError as error:
        reasons.put(str(error))
        raise


@contextmanager
def _signals_passed_on() -> Iterator[list[int]]:
    """Signals become a polite request to all processes; the numbers that came."""
    seen: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in multiprocessing.active_children():
            process.kill() if seen else process.terminate()  # a second one is obeyed at once
        seen.append(number)

    try:
        handlers = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread, where signals do not arrive
        handlers = {}
    try:
        yield seen
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
