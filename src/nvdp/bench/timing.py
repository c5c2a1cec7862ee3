"""Timing in turns: every round runs each variant once, so that other load on the machine affects all alike.

:class:`Worker` is a separate process, for a step under the system's default allocator or for the peak memory of a
step. It reads one JSON command a line and answers with one line. Peak memory is the kernel's high-water mark (VmHWM)
of a fork of it, reset just before the step; `ru_maxrss` would not do, as a child inherits it from a large parent.
"""

import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from nvdp.bench.cases import STEPS, Case, Step
from nvdp.errors import InputError
from nvdp.system import keep_freed_memory, use_threads

Span = tuple[float, float]  # milliseconds of wall clock and of processor
Variant = Callable[[int], Span | None]
"""Does the work of one round, given its number; returns the time only if the work ran in another process."""


@dataclass(frozen=True)
class Timings:
    """The spans of each variant, one a round: entry i of two variants was measured in the same round."""

    spans: dict[str, list[Span]]

    def median(self, name: str) -> float:
        """Median wall-clock milliseconds.

        >>> Timings({"a": [(2.0, 1.0), (9.0, 1.0), (3.0, 1.0)]}).median("a")
        3.0
        """
        return statistics.median(wall for wall, _ in self.spans[name])

    def ratio(self, name: str, base: str, processor: bool = False) -> float:
        """Median over rounds of the ratio within a round, which a machine that slows down half-way does not change.

        Args:
            name: the variant in the numerator.
            base: the variant in the denominator.
            processor: use processor time, which other load on the machine hardly changes, instead of wall-clock time.

        Returns:
            The ratio.

        >>> Timings({"a": [(4.0, 1.0), (40.0, 1.0)], "b": [(2.0, 1.0), (20.0, 1.0)]}).ratio("a", "b")
        2.0
        """
        pairs = zip(self.spans[name], self.spans[base], strict=True)
        return statistics.median(own[processor] / other[processor] for own, other in pairs)

    def columns(self, scale: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Medians, quartiles and processor time of every variant, as entries of a row; some multiplied by a scale."""
        row: dict[str, Any] = {}
        for name, spans in self.spans.items():
            factor = (scale or {}).get(name, 1.0)
            walls = [wall * factor for wall, _ in spans]
            low, _, high = statistics.quantiles(walls, n=4, method="inclusive") if len(walls) > 1 else walls * 3
            row[f"{name}_ms"] = statistics.median(walls)
            row[f"{name}_quartiles_ms"] = [low, high]
            row[f"{name}_cpu_ms"] = statistics.median(cpu * factor for _, cpu in spans)
        return row | {"rounds": len(next(iter(self.spans.values())))}


def measured(work: Callable[[], object]) -> Span:
    """How long one call takes, by the wall clock and in this process's own processor time.

    Args:
        work: The call; where it computes on a GPU, what it has queued there is part of it.

    Returns:
        Milliseconds of both.
    """
    _wait_for_gpu()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    _wait_for_gpu()
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)


def _wait_for_gpu() -> None:
    """A GPU computes while the process goes on: without waiting the clock shows when work was queued."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def interleaved(
    variants: Mapping[str, Variant], rounds: int, warmup: int = 1, seconds: float = float("inf")
) -> Timings:
    """Time the variants in turns for that many rounds, or until the seconds are over; at least one round.

    Odd rounds go through the variants backwards, so that none always runs after the same other.

    Args:
        variants: the work of each, by name.
        rounds: number of rounds.
        warmup: rounds before, which are not measured.
        seconds: no new round begins after that many.

    Returns:
        The times of all rounds.
    """
    for index in range(warmup):
        for variant in variants.values():
            variant(index)
    spans: dict[str, list[Span]] = {name: [] for name in variants}
    began = time.monotonic()
    for index in range(rounds):
        if index and time.monotonic() - began > seconds:
            break
        order = list(variants)[:: -1 if index % 2 else 1]
        for name in order:
            spans[name].append(_once(variants[name], index))
    return Timings(spans)


def _once(variant: Variant, index: int) -> Span:
    elsewhere: list[Span] = []

    def work() -> None:
        span = variant(index)
        if span is not None:
            elsewhere.append(span)

    here = measured(work)
    return elsewhere[0] if elsewhere else here


def machine(keeps_freed_memory: bool) -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "keeps_freed_memory": keeps_freed_memory,
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _importing(source: Path) -> dict[str, str]:
    """Environment variables of a process that imports the package from a folder, whatever its working folder has."""
    return {"PYTHONPATH": str(source.resolve()), "PYTHONSAFEPATH": "1"}


def check_source(source: Path) -> None:
    """Refuse a src folder from which a process would not import its own version of the package.

    Args:
        source: The src folder of another version.

    Raises:
        InputError: If the package cannot be imported from there.
    """
    command = [sys.executable, "-c", "import nvdp.bench.timing; print(nvdp.__file__)"]
    found = subprocess.run(command, capture_output=True, text=True, env=os.environ | _importing(source))
    place = Path(found.stdout.strip() or ".").resolve()
    if found.returncode or place.parent.parent != source.resolve():
        said = found.stderr.strip().splitlines() or [f"the import ended with code {found.returncode}"]
        reason = said[-1] if found.returncode else f"a process imports {place}"
        raise InputError(f"{source} is not the src folder of a version of nvdp: {reason}")


class Worker:
    """Starts the process and sends it commands.

    Args:
        threads: Of PyTorch.
        keep_memory: False leaves glibc's allocator at its defaults.
        source: The src folder of another version of the package, which the process imports instead of this one.
    """

    def __init__(self, threads: int, keep_memory: bool, source: Path | None = None) -> None:
        environment = os.environ | {"NVDP_KEEP_MEMORY": "1" if keep_memory else "0"}
        if source is not None:
            environment |= _importing(source)
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from nvdp.bench.timing import answer_commands; answer_commands()", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def step(self, variant: str, case: Case) -> Span:
        """The time of one step."""
        wall, cpu = self._ask("step", variant, case)
        return wall, cpu

    def peak_memory(self, variant: str, case: Case) -> int:
        """Bytes by which the first step of a model raises the memory of the process."""
        return int(self._ask("peak", variant, case))

    def _ask(self, what: str, variant: str, case: Case) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"what": what, "variant": variant, "case": asdict(case)}) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer in ("", "null\n"):
            raise InputError(f"the process measuring {variant} at {case} ended; most likely its memory ran out")
        return json.loads(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()


def answer_commands() -> None:
    """What the process does: answer commands until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which closes the input
    keep_freed_memory()
    use_threads(int(sys.argv[1]))
    ready: tuple[str, Case, Step] | None = None
    for line in sys.stdin:
        command = json.loads(line)
        variant, case = command["variant"], Case(**command["case"])
        if command["what"] == "peak":
            _in_a_fork(lambda: print(json.dumps(peak_of_first_step(variant, case)), flush=True))  # noqa: B023
            continue
        if ready is None or ready[:2] != (variant, case):
            ready = (variant, case, STEPS[variant](case))
            ready[2]()
        print(json.dumps(measured(ready[2])), flush=True)


def _in_a_fork(work: Callable[[], None]) -> None:
    """Do the work in a fork of this process, which has only imported modules: as good as a new process, but faster."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        print("null", flush=True)


def peak_of_first_step(variant: str, case: Case) -> int:
    """Peak of the first step above what model and data occupy: activations, gradients and the optimiser's moments."""
    STEPS[variant](Case(case.model, tasks=1, points=2, context=1, width=2, layers=1))()  # loads lazy imports
    step = STEPS[variant](case)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back to what is in use now
    before = _memory("VmRSS")
    step()
    return max(_memory("VmHWM") - before, 0)


def _memory(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # not Linux
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))
