"""A bounded pool of threads: heavy requests queue up to a limit and never stop the server from answering."""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from nvdp.web.limits import WAITING

T = TypeVar("T")


class PoolFull(Exception):
    """All workers are busy and the queue is at its limit."""


class Pool:
    """`workers` threads and at most `waiting` jobs behind them; PyTorch lets go of the interpreter while it computes.

    >>> pool = Pool(workers=1, waiting=1)
    >>> asyncio.run(pool.run(lambda: 6 * 7))
    42
    >>> pool.close()
    """

    def __init__(self, workers: int | None = None, waiting: int = WAITING) -> None:
        self.workers = workers or max(1, os.cpu_count() or 1)
        self.most = self.workers + waiting
        self._jobs, self._lock = 0, threading.Lock()
        # One thread a job: several would only get in each other's way.
        self._executor = ThreadPoolExecutor(self.workers, "nvdp-web", initializer=torch.set_num_threads, initargs=(1,))

    async def run(self, job: Callable[[], T]) -> T:
        """The job's result; `PoolFull` at once if too many are waiting."""
        with self._lock:
            if self._jobs >= self.most:
                raise PoolFull(f"{self._jobs} requests are waiting, which is the limit; try again in a moment")
            self._jobs += 1
        future = self._executor.submit(job)
        future.add_done_callback(self._end)  # also if the visitor has gone: the place is free when the thread is
        return await asyncio.wrap_future(future)

    def _end(self, future: "Future[T]") -> None:
        with self._lock:
            self._jobs -= 1

    def close(self) -> None:
        """Let running jobs end and drop those that wait."""
        self._executor.shutdown(wait=True, cancel_futures=True)
