"""One bar for all runs of a queue, read from their logs wherever they take place."""

import csv
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from nvdp.experiments.plan import PlannedRun
from nvdp.training.run_folder import LOG


class QueueProgress:
    """Steps done of all runs of a plan, on standard error."""

    def __init__(self, title: str, plan: Sequence[PlannedRun], runs: Path) -> None:
        self._plan, self._runs = plan, runs
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._whole = self._bar.add_task(title, total=sum(run.config.steps for run in plan), state="")

    def say(self, line: str) -> None:
        """A line above the bar."""
        self._bar.console.print(line)

    def update(self, state: str) -> None:
        """Look at the runs again."""
        done = sum(steps_done(run.folder(self._runs)) for run in self._plan)
        self._bar.update(self._whole, completed=done, state=state)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def steps_done(folder: Path) -> int:
    """The last step in a run's log; 0 if there is none yet."""
    try:
        with (folder / LOG).open() as file:
            rows = list(csv.reader(file))
        return int(rows[-1][0]) if len(rows) > 1 else 0
    except (OSError, ValueError, IndexError):
        return 0
