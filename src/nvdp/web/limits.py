"""What protects the server: limits of a request, the queue of jobs, error answers and security headers.

With these limits no request takes much memory or time.
"""

import asyncio
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BYTES = 512 * 1024  # of a request's body
MAX_CONTEXT = 1024  # points: all pixels of a 32 × 32 picture
MAX_QUERY = 1024
MAX_FEATURES = 8  # numbers of a point
MAX_SAMPLES = 64
MAX_SAMPLED = 32 * 1024  # samples × query points
MAX_DISTANCE = 1000.0  # of a coordinate or an observation from the centre, in standardised units
MAX_NUMBER = 1e12  # of a table's own units, either sign
MAX_SEED = 2**31 - 1
MAX_NAME = 100  # characters
MAX_CONTEXT_EXACT = 128  # the exact GP solves a system of this many equations for every kernel
MAX_QUERY_EXACT = 512  # and factorises a matrix of this many rows for every kernel that functions are drawn from
MAX_RATE_CELLS = 32  # rows and columns of a layer's heat map

MAX_PIXELS = 4096  # numbers of a picture to classify
MAX_SUPPORT = 50  # labelled pictures: ten of each of five classes
MAX_CLASSES = 20
MAX_PICTURES = 20  # to classify in one request

MAX_WAITING = 160  # requests that wait for a worker: two models for each of 80 visitors
MAX_REASON = 300  # characters of an error answer

HEADERS = {  # the page needs nothing from elsewhere and may not load it
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
T = TypeVar("T")


class QueueFull(Exception):
    """All workers are busy and the queue is at its limit."""


class Pool:
    """`workers` threads with a bounded queue, so that heavy requests never stop the server from answering.

    PyTorch releases the interpreter lock while it computes.

    >>> pool = Pool(workers=1, waiting=1)
    >>> asyncio.run(pool.run(lambda: 6 * 7))
    42
    >>> pool.close()
    """

    def __init__(self, workers: int | None = None, waiting: int = MAX_WAITING) -> None:
        self.workers = workers or max(1, os.cpu_count() or 1)
        self.max_jobs = self.workers + waiting
        self._jobs, self._lock = 0, threading.Lock()
        # One PyTorch thread for each job: more would compete with the other workers.
        self._executor = ThreadPoolExecutor(self.workers, "nvdp-web", initializer=torch.set_num_threads, initargs=(1,))

    async def run(self, job: Callable[[], T]) -> T:
        """The job's result; `QueueFull` at once if too many are waiting."""
        with self._lock:
            if self._jobs >= self.max_jobs:
                raise QueueFull(f"{self._jobs} requests are waiting, which is the limit; try again in a moment")
            self._jobs += 1
        future = self._executor.submit(job)
        future.add_done_callback(self._end)  # also if the visitor has left: the place is free when the thread is
        return await asyncio.wrap_future(future)

    def _end(self, future: "Future[T]") -> None:
        with self._lock:
            self._jobs -= 1

    def close(self) -> None:
        """Wait for running jobs and drop those that wait."""
        self._executor.shutdown(wait=True, cancel_futures=True)


class BodyLimit:
    """Middleware: reads a request's body before it is parsed; 413 if it is longer than `most` bytes."""

    def __init__(self, app: ASGIApp, most: int = MAX_BYTES) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared[:20]) > self.most:
            await self._too_long(f"{int(declared[:20])}")(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.most:
                await self._too_long(f"more than {self.most}")(scope, receive, send)
                return
        await self.app(scope, _with_body(body, receive), send)

    def _too_long(self, size: str) -> Response:
        return error_answer(413, f"the body holds {size} bytes; expected at most {self.most}")


def _with_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body which was read already."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return unread.pop() if unread else await receive()

    return receive_again


class SecurityHeaders:
    """Middleware: adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, send_with_headers)


def error_answer(status: int, reason: str, headers: dict[str, str] | None = None) -> Response:
    """``{"detail": reason}`` on one line, in ASCII whatever the request held.

    >>> error_answer(422, "x is \\ud800").body
    b'{"detail": "x is \\\\ud800"}'
    """
    line = " ".join(reason.split())
    line = line if len(line) <= MAX_REASON else line[: MAX_REASON - 1] + "…"
    return Response(json.dumps({"detail": line}), status, headers, "application/json")


def first_error(errors: list[dict[str, Any]]) -> str:
    """Pydantic's first error as one line: where, what, and what was given.

    >>> first_error([{"loc": ("body", "x", 0), "msg": "Input should be a valid list", "input": "a"}])
    "x[0]: input should be a valid list; got 'a'"
    """
    error = errors[0]
    if error.get("type") == "json_invalid":
        return f"the body is not JSON, at character {error['loc'][-1]}"
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
    place = place.removeprefix(".body").lstrip(".") or "the body"
    message = error["msg"][:1].lower() + error["msg"][1:]
    return f"{place[:80]}: {message}; got {_short(error.get('input'))}"


def _short(given: Any) -> Any:
    if isinstance(given, dict | list):
        return f"{type(given).__name__} of {len(given)}"
    if isinstance(given, str):
        return repr(given[:60])
    try:
        return f"{given!r:.40}" if isinstance(given, int | float) else given
    except ValueError:  # a whole number of too many digits to print
        return "a whole number of thousands of digits"
