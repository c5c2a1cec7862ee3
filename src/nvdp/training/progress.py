"""The progress bar of training (LL, KL, rate, steps a second, time left), and the signals that stop it."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f} steps/s", style="cyan")


class ProgressBar:
    """A bar of `rich` that is shown within a ``with`` block."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


class TrainingProgress(ProgressBar):
    """The bar of one run, on standard error; ten plain lines if that is not a terminal.

    Args:
        title: What is trained.
        steps: All steps; None for a run that ends by time or by its score, whose progress is a share from 0 to 1.
        start: The steps that are done already.
        wanted: Whether anything is shown.
    """

    def __init__(self, title: str, steps: int | None, start: int, wanted: bool) -> None:
        console = self._console = Console(stderr=True, soft_wrap=True)
        self._plain = wanted and not console.is_terminal
        total = 1.0 if steps is None else steps
        self._title, self._steps, self._total, self._next_line = title, steps, total, start + total / 10
        counts = [TaskProgressColumn()] if steps is None else [MofNCompleteColumn(), _Speed()]
        super().__init__(
            Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                *counts,
                TextColumn("{task.fields[numbers]}"),
                TimeRemainingColumn(),
                console=console,
                disable=not wanted or not console.is_terminal,
            )
        )
        self._task = self._bar.add_task(title, total=total, completed=start, numbers="")

    def advance_to(self, done: float) -> None:
        """Show the number of steps done, or the share."""
        self._bar.update(self._task, completed=done)

    def show(self, row: dict[str, float]) -> None:
        """Show the numbers of a log row."""
        numbers = f"LL {row['LL']:.3f}  KL {row['KL']:.3g}"
        if row["rate"]:
            numbers += f"  rate {row['rate']:.3f}"
        self.say(int(row["step"]), numbers)

    def say(self, done: float, numbers: str) -> None:
        """Show numbers at this step, or share."""
        self._bar.update(self._task, numbers=numbers)
        if self._plain and done >= self._next_line - 1e-9:
            place = f"{done:.0%}" if self._steps is None else f"step {done} of {self._steps}"
            self._console.print(f"{self._title}, {place}: {numbers}", highlight=False)
            while done >= self._next_line - 1e-9:
                self._next_line += self._total / 10


class StopRequest:
    """While active, the first SIGINT or SIGTERM is only noted in `signal`; a second one ends the process.

    With `patient` later ones are noted too: for one of several processes, which stop together.
    """

    def __init__(self, patient: bool = False) -> None:
        self.signal: int | None = None
        self._patient = patient
        self._before: dict[int, Any] = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        if not self._patient:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
