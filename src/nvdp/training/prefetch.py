"""Tasks drawn ahead: while a step is computed, a thread draws the tasks of the next one."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from nvdp.tasks import TaskBatch


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
