"""Work in several processes of this machine; none of them outlives the process that started it."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from nvdp.errors import InputError
from nvdp.system import keep_freed_memory, terminated_as_exit, use_threads

T = TypeVar("T")


def in_processes(work: Callable[..., T], calls: Sequence[tuple[Any, ...]], processes: int) -> Generator[T, None, None]:
    """Call a function many times, in several processes.

    Args:
        work: A function of a module, which processes can import.
        calls: The arguments of each call.
        processes: How many; each has the threads of PyTorch that this process has.

    Yields:
        What each call returns, as soon as it is done.

    Raises:
        InputError: If a process ended before its call was done.
    """
    spawn, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    start = _prepare, (torch.get_num_threads(), os.getpid())
    with terminated_as_exit(), ProcessPoolExecutor(processes, spawn, *start) as pool:
        own: set[Any] = set()
        try:
            with _ignored_by_children():
                results = [pool.submit(work, *each) for each in calls]
                own = set(multiprocessing.active_children()) - others
            for done in as_completed(results):
                yield done.result()
        except BaseException as error:  # Ctrl-C and SIGTERM too
            for process in own or set(multiprocessing.active_children()) - others:
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                said = "a process ended unexpectedly, perhaps for lack of memory; fewer --jobs need less"
                raise InputError(said) from None
            raise


@contextmanager
def _ignored_by_children() -> Iterator[None]:
    """Processes that are started inside ignore Ctrl-C: it reaches this process, which ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare(threads: int, parent: int) -> None:
    end_with(parent)
    keep_freed_memory()
    use_threads(threads)


def end_with(parent: int) -> None:
    """End this process as soon as its parent is gone, e.g. killed.

    Args:
        parent: The parent's process number.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
