"""Processes that answer cheap requests. Most of their time is spent in Python, of which one process runs one thread.

They are forked after the models are loaded and before any thread starts, so that they share the models' memory.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, wait
from typing import Any

import torch
from pydantic_core import to_json

from nvdp.processes import end_with

_MODELS: Mapping[str, Any] = {}  # of a worker: those of the server that forked it


def forked(models: Mapping[str, Any], count: int) -> Executor | None:
    """Worker processes that hold these models; None where processes cannot be forked safely.

    Args:
        models: What `answer` finds by name.
        count: How many processes.

    Returns:
        An executor whose processes end with this one, however it ends.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return None
    fork = multiprocessing.get_context("fork")
    executor = ProcessPoolExecutor(count, fork, initializer=_begin, initargs=(models, os.getpid()))
    wait([executor.submit(os.getpid)])  # forks all of them
    return executor


def answer(name: str, method: str, arguments: tuple[Any, ...]) -> bytes:
    """In a worker: what a method of a model returns, as JSON."""
    return to_json(getattr(_MODELS[name], method)(*arguments))


def _begin(models: Mapping[str, Any], parent: int) -> None:
    global _MODELS
    _MODELS = models
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the server tells its workers
    end_with(parent)
