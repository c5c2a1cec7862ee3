"""One run on one or several processes: each computes the bound of its share of a step's tasks, gradients are averaged.

A run is defined by all tasks of a step, not by the process that computes them. Every process draws the whole batch and
the whole noise of a step and takes its own part, and normalisation over tasks uses the statistics of all tasks. So a
run gives the same numbers, up to rounding, with any number of processes, and it may resume with another number.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from jaxtyping import Float
from torch import Tensor, nn

from nvdp.errors import InputError
from nvdp.nn.task_norm import TaskNorm
from nvdp.randomness import ShareOfNoise
from nvdp.system import avoid_broken_amx
from nvdp.tasks import TaskBatch
from nvdp.training.config import FULL_PRECISION
from nvdp.training.optimizers import clip_gradients

if TYPE_CHECKING:  # Fabric takes as long to import as PyTorch
    from lightning_fabric import Fabric

Numbers = dict[str, float]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Machine:
    """Where a run takes place: Fabric's own flags, the number of threads, and how a step is computed."""

    device: str = "auto"
    devices: int = 1
    precision: str = FULL_PRECISION
    threads: int | None = None
    engine: str = "compiled"  # or "fused" or "autograd"


class SingleProcess:
    """A run in one process, without Fabric; `ProcessGroup` does the same with it."""

    def __init__(self, device: torch.device = CPU, rank: int = 0, size: int = 1) -> None:
        self.device, self.rank, self.size = device, rank, size

    def share(self, tasks: TaskBatch) -> TaskBatch:
        """The tasks of this process."""
        return tasks.to(self.device)

    def noise(self, generator: torch.Generator) -> torch.Generator:
        """The generator of this process's share of a step's noise."""
        return generator

    def mean(self, numbers: dict[str, Tensor]) -> Numbers:
        """The means over processes."""
        return {name: value.item() for name, value in numbers.items()}

    def backward(self, loss: Tensor) -> None:
        """Compute the gradient."""
        loss.backward()

    def clip_gradients(self, module: nn.Module, optimizer: Any, largest: float) -> Tensor:
        """Clip the norm of the whole gradient; the norm before."""
        return clip_gradients(module.parameters(), largest)

    def any_signal(self, number: int | None) -> int | None:
        """The signal that any process was sent."""
        return number


class ProcessGroup(SingleProcess):
    """The process group of a run as one of its processes sees it, through Fabric."""

    def __init__(self, fabric: "Fabric") -> None:
        super().__init__(fabric.device, fabric.global_rank, fabric.world_size)
        self.fabric = fabric

    def setup(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        """Module and optimiser on the device, in Fabric's precision; task normalisation sees all processes' tasks."""
        for part in module.modules():
            if self.size > 1 and isinstance(part, TaskNorm):
                part.moments = moments_over_processes
        return self.fabric.setup(module, optimizer)

    def share(self, tasks: TaskBatch) -> TaskBatch:
        """The tasks of this process."""
        if self.size > 1:
            own = len(tasks) // self.size
            part = slice(self.rank * own, (self.rank + 1) * own)
            tasks = TaskBatch(tasks.x[part], tasks.y[part], tasks.is_context[part], tasks.mask[part])
        return tasks.to(self.device)

    def noise(self, generator: torch.Generator) -> torch.Generator:
        """The generator of this process's share of a step's noise."""
        return generator if self.size == 1 else ShareOfNoise.of(generator, self.rank, self.size)

    def mean(self, numbers: dict[str, Tensor]) -> Numbers:
        """The means over processes; one value that is not finite makes the mean so, and all skip the step."""
        if self.size == 1:
            return super().mean(numbers)
        values = torch.stack([value.detach().double() for value in numbers.values()]) / self.size
        torch.distributed.all_reduce(values)
        return dict(zip(numbers, values.tolist(), strict=True))

    def backward(self, loss: Tensor) -> None:
        """Compute the gradient, averaged over processes."""
        self.fabric.backward(loss)

    def clip_gradients(self, module: nn.Module, optimizer: Any, largest: float) -> Tensor:
        """Clip the norm of the whole gradient; the norm before."""
        if self.device.type == "cpu":  # where gradients are never scaled
            return super().clip_gradients(module, optimizer, largest)
        norm = self.fabric.clip_gradients(module, optimizer, max_norm=largest, error_if_nonfinite=False)
        assert norm is not None
        return norm

    def any_signal(self, number: int | None) -> int | None:
        """The signal that any process was sent: all stop after the same step."""
        if self.size == 1:
            return number
        largest = torch.tensor(number or 0, device=self.device)
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
        return int(largest) or None


class _SumOverProcesses(torch.autograd.Function):
    """Σ over processes; the gradient of whatever depends on the sum, in any process, goes back to all."""

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


def check_shares(tasks: int, processes: int, normalised: bool) -> None:
    """Refuse a number of processes that cannot share a step's tasks equally."""
    if processes < 1:
        raise InputError(f"--devices is {processes}; expected at least 1")
    if tasks % processes:
        raise InputError(f"{tasks} tasks a step cannot be shared equally by {processes} processes")
    if normalised and processes > 1 and tasks < 2 * processes:
        raise InputError(
            f"normalisation over tasks needs at least 2 tasks a step and process; got {tasks} for {processes}"
        )


def processes_of(machine: Machine) -> int:
    """How many processes a run has in all: those that torchrun has started, or one for each device."""
    return int(os.environ["WORLD_SIZE"]) if _local_processes() else machine.devices


def _local_processes() -> int:
    """How many processes torchrun, or a scheduler through it, has started on this machine; 0 if none."""
    found = torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()
    return int(os.environ["LOCAL_WORLD_SIZE"]) if found else 0


def _fabric(machine: Machine) -> "Fabric":
    """Fabric on a machine's devices: data parallel if there are several, in processes that it starts or finds."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    if machine.precision != FULL_PRECISION:
        avoid_broken_amx()
    local, processes = _local_processes(), processes_of(machine)
    devices = local or machine.devices
    strategy: str | DDPStrategy = "auto"
    if processes > 1:
        # Forked from a server that has imported everything once; not where a GPU is in use already, or on Windows.
        forks = "forkserver" in multiprocessing.get_all_start_methods() and not torch.cuda.is_initialized()
        strategy = DDPStrategy() if local else DDPStrategy(start_method="forkserver" if forks else "spawn")
    try:
        return Fabric(
            accelerator=machine.device,
            devices=devices,
            num_nodes=processes // devices,
            strategy=strategy,
            precision=machine.precision,  # type: ignore[arg-type]
        )
    except (RuntimeError, ValueError, TypeError, MisconfigurationException) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"cannot use {devices} × {machine.device}, {machine.precision}: {reason}") from None


def launch(machine: Machine, prepare: Callable[[], None], work: Callable[..., Any], *arguments: Any) -> Any:
    """Call `work(*arguments, process_group)` in every process of a run, and return what rank 0 returns.

    Args:
        machine: The devices and precision.
        prepare: Called once, when the devices are found and before the work begins.
        work: A function of a module, so that started processes can import it.
        arguments: Its first arguments.

    Returns:
        What `work` returns in rank 0.
    """
    fabric = _fabric(machine)
    if machine.devices > 1 and not _local_processes():
        prepare()
        return _start_processes(fabric, machine.devices, partial(work, *arguments))
    fabric.launch()
    if fabric.global_rank == 0:
        prepare()
    fabric.barrier()
    return work(*arguments, ProcessGroup(fabric))


def _start_processes(fabric: "Fabric", processes: int, work: Callable[[ProcessGroup], Any]) -> Any:
    """One process that ends ends all. Ctrl-C and SIGTERM are passed on, so that all stop after the same step."""
    from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

    start_method = fabric.strategy._start_method  # type: ignore[attr-defined]
    context = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        context.set_forkserver_preload(["nvdp.training.run", "lightning_fabric"])
    reasons = context.SimpleQueue()
    before = os.environ.get("MASTER_PORT")
    try:
        with _signals_passed_on() as seen:
            outcome = fabric.launch(_process, work, reasons, dict(os.environ)).value  # type: ignore[arg-type]
    except (ProcessExitedException, ProcessRaisedException) as error:
        if not reasons.empty():  # of the process that failed first; the others only lost it
            raise InputError(reasons.get()) from None
        if isinstance(error, ProcessExitedException):
            how = error.signal_name or f"code {error.exit_code}"
            raise InputError(
                f"process {error.error_index + 1} of {processes} ended by {how}, and the run with it; "
                "--resume goes on from the last checkpoint, with any --devices"
            ) from None
        if "Connection closed by peer" in str(error) or "Connection reset by peer" in str(error):
            raise InputError(
                f"one of the {processes} processes is gone, and the run with it; "
                "--resume goes on from the last checkpoint, with any --devices"
            ) from None
        raise
    finally:
        os.environ.pop("MASTER_PORT", None)  # Fabric leaves it behind, and the next run would fail on it
        if before is not None:
            os.environ["MASTER_PORT"] = before
    return replace(outcome, stopped_by=seen[0]) if seen and outcome.stopped_by is not None else outcome


class _Result:
    """What a process returns; Fabric looks for tensors in anything that it knows how to open."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _process(
    fabric: "Fabric", work: Callable[[ProcessGroup], Any], reasons: Any, environment: dict[str, str]
) -> _Result:
    os.environ.update(environment)  # a fork server has the environment of its own start
    try:
        return _Result(work(ProcessGroup(fabric)))
    except InputError as error:
        reasons.put(str(error))
        raise


@contextmanager
def _signals_passed_on() -> Iterator[list[int]]:
    """The first signal asks all processes to stop, a second one kills them; yields the signals that came."""
    seen: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in multiprocessing.active_children():
            process.kill() if seen else process.terminate()
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
