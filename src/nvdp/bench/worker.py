"""A process of its own: for a step under the system's own allocator, or for the peak memory of a step.

The process reads one JSON command a line and answers with one line. Peak memory is the kernel's high-water mark
(VmHWM) of a fork of it, set back just before the step: `ru_maxrss` would not do, as a child inherits it from a large
parent.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nvdp.bench.cases import STEPS, Case, Step
from nvdp.bench.timing import Span, measured
from nvdp.errors import InputError
from nvdp.system import keep_freed_memory, use_threads


class Worker:
    """The other end: starts the process and asks it; with ``keep_memory=False`` glibc's defaults stay."""

    def __init__(self, threads: int, keep_memory: bool) -> None:
        environment = os.environ | {"NVDP_KEEP_MEMORY": "1" if keep_memory else "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from nvdp.bench.worker import main; main()", str(threads)],
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


def main() -> None:
    """Answer commands until there are none."""
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
    """Do the work in a copy of this process, which has only imported things: as fresh as a new one, but at once."""
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
    STEPS[variant](Case(case.model, tasks=1, points=2, context=1, width=2, layers=1))()  # loads what loads lazily
    step = STEPS[variant](case)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back to what is in use now
    before = _memory("VmRSS")
    step()
    return max(_memory("VmHWM") - before, 0)


def _memory(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # not Linux: the best there is
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))
