"""What protects the server: limits of a request, the queue of jobs, error answers and security headers.

With these limits no request takes much memory or time.
"""

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, TypeVar

import torch
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch.overrides import TorchFunctionMode

from nvdp.web.workers import forked

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

MAX_WAITING = 160  # cheap requests that wait for a worker: two models for each of 80 visitors
MAX_DEAR_WAITING = 16  # dear ones
MAX_DEAR_OF_ONE = 8  # dear ones of one visitor, running and waiting
DEAR_PICTURES = 12  # labelled ones and those to classify together
DEAR_SAMPLED = 8_192  # samples × query points; /api/suggest draws its own
DEAR_PAIRS = 40_000  # context × query points of a model that compares them all
DEAR_NICE = 4  # added to the niceness of the threads of dear requests, where threads have one (Linux)
MAX_HELD = 64 * 1024 * 1024  # bytes of bodies that are being received, of all requests together

MAX_CONNECTIONS, MAX_CONNECTIONS_OF_ONE = 512, 384
REQUEST_SECONDS = 10.0  # from the first byte of a request to its last
KEEP_ALIVE_SECONDS = 30
FINISH_SECONDS = 2  # that a server which is told to stop waits for answers
MAX_REASON = 300  # characters of an error answer

HEADERS = {  # the page needs nothing from elsewhere and may not load it
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
RETRY = {"Retry-After": "1"}
T = TypeVar("T")


class QueueFull(Exception):
    """All workers are busy and the queue is at its limit; `seconds` says when to try again."""

    def __init__(self, reason: str, seconds: int = 1) -> None:
        super().__init__(reason)
        self.seconds = seconds


class Abandoned(Exception):
    """Nobody waits any more for the result of a job that is running."""


class UntilStopped(TorchFunctionMode):
    """Within it every call of PyTorch in this thread first asks whether the job is still wanted.

    >>> stopped = threading.Event()
    >>> with UntilStopped(stopped):
    ...     (torch.ones(2) + 1).tolist()
    [2.0, 2.0]
    """

    def __init__(self, stopped: threading.Event) -> None:
        super().__init__()
        self.stopped = stopped

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One call."""
        if self.stopped.is_set():
            raise Abandoned
        return func(*args, **(kwargs or {}))


class Pool:
    """Workers for cheap requests and others for dear ones, each with a bounded queue.

    Cheap requests never wait behind dear ones, and the server itself never computes. Dear requests have threads of a
    lower priority. Cheap ones have processes where the models are given and can be forked, and threads otherwise.

    >>> pool = Pool(workers=1, waiting=1)
    >>> asyncio.run(pool.run(lambda: 6 * 7))
    42
    >>> pool.close()
    """

    def __init__(
        self,
        workers: int | None = None,
        waiting: int = MAX_WAITING,
        dear_waiting: int = MAX_DEAR_WAITING,
        models: Mapping[str, Any] | None = None,
    ) -> None:
        self.workers = workers or max(1, os.cpu_count() or 1)
        processes = None if models is None else forked(models, self.workers)
        self.cheap = Lane(self.workers, waiting, waiting, 0, processes)
        self.dear = Lane(max(1, self.workers // 2), dear_waiting, MAX_DEAR_OF_ONE, DEAR_NICE)

    async def run(
        self, job: Callable[[], T], visitor: str = "", dear: bool = False, remote: Callable[[], T] | None = None
    ) -> T:
        """The job's result; `QueueFull` at once if too many are waiting.

        A caller that is cancelled takes a waiting job back, and stops a dear one that is running.
        `remote` is the same job for a process, to which it can be sent.
        """
        if dear or remote is None or self.cheap.processes is None:
            return await (self.dear if dear else self.cheap).run(job, visitor)
        try:
            return await self.cheap.run(remote, visitor, self.cheap.processes)
        except BrokenExecutor:  # a process was killed: threads take over
            self.cheap.processes = None
            return await self.cheap.run(job, visitor)

    def close(self) -> None:
        """Drop the jobs that wait and stop the dear ones that run: nobody is left to be answered."""
        for lane in (self.cheap, self.dear):
            lane.close()

    @property
    def busy(self) -> bool:
        """Whether a job is still running."""
        return bool(self.cheap.jobs or self.dear.jobs)


class Lane:
    """Some workers and their queue: at most `waiting` jobs wait, and at most `each` of one visitor run or wait."""

    def __init__(self, workers: int, waiting: int, each: int, nice: int, processes: Executor | None = None) -> None:
        self.processes = processes
        self.workers, self.max_jobs, self.each, self.nice = workers, workers + waiting, each, nice
        self.jobs: Counter[str] = Counter()
        self._running: set[threading.Event] = set()
        self._lock = threading.Lock()
        self.executor = ThreadPoolExecutor(workers, "nvdp-web", initializer=self._begin)

    def _begin(self) -> None:
        torch.set_num_threads(1)  # more would compete with the other workers
        if self.nice:
            with suppress(OSError, AttributeError):
                thread, process = threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, thread, process + self.nice)

    async def run(self, job: Callable[[], T], visitor: str, executor: Executor | None = None) -> T:
        """The job's result."""
        with self._lock:
            waiting = self.jobs.total()
            if waiting >= self.max_jobs:
                reason = f"{waiting} requests are waiting, which is the limit; try again in a moment"
                raise QueueFull(reason, 1 + waiting // 8 if self.nice else 1)
            if self.nice and self.jobs[visitor] >= self.each:
                reason = f"{self.jobs[visitor]} large requests of yours are waiting, which is the limit"
                raise QueueFull(f"{reason}; try again in a moment", 2)
            self.jobs[visitor] += 1
        stopped = threading.Event()
        try:
            if self.nice:
                future = self.executor.submit(self._until_stopped, job, stopped)
            else:
                future = (executor or self.executor).submit(job)
        except BaseException:
            self._end(visitor, stopped)
            raise
        self._running.add(stopped)
        future.add_done_callback(lambda _: self._end(visitor, stopped))  # of a running job, when its thread is free
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            stopped.set()
            raise

    @staticmethod
    def _until_stopped(job: Callable[[], T], stopped: threading.Event) -> T:
        with UntilStopped(stopped):
            return job()

    def close(self) -> None:
        """Drop and stop all jobs."""
        for stopped in list(self._running):
            stopped.set()
        self.executor.shutdown(wait=False, cancel_futures=True)
        if self.processes is not None:  # waited for, as their end and that of this process would otherwise meet
            self.processes.shutdown(wait=True, cancel_futures=True)

    def _end(self, visitor: str, stopped: threading.Event) -> None:
        with self._lock:
            self._running.discard(stopped)
            self.jobs[visitor] -= 1
            self.jobs += Counter()  # drops those at 0


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T | None:
    """The result of some work, which is cancelled when the visitor goes away; then None."""
    task = asyncio.ensure_future(work)

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        task.cancel()
        leaving.cancel()


class AllowedHosts:
    """Middleware: refuses a request for another host name, with which a foreign page could read answers.

    Addresses and names without a dot are always allowed: a page that rebinds its own name to this machine asks under
    that name, and nobody can own one without a dot.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self.app, self.names = app, {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if not is_own_host(given, self.names):
                reason = f"the host '{given[:60]}' is not served here; start the server with --allow-host to add a name"
                await error_answer(421, reason)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def is_own_host(host: str, names: Container[str]) -> bool:
    """Whether a Host header names this server: an address, a name without a dot, or one of `names`.

    >>> asked = ("127.0.0.1:8765", "[::1]:80", "localhost", "lab.example:1", "evil.example")
    >>> [is_own_host(host, {"lab.example"}) for host in asked]
    [True, True, True, True, False]
    """
    name = host.rsplit("]", 1)[0].lstrip("[") if host.startswith("[") else host.split(":")[0]
    try:
        ip_address(name)
    except ValueError:
        return "." not in name or name.lower().rstrip(".") in names
    return True


class BodyLimit:
    """Middleware: reads a request's body before it is parsed; 413 if it is longer than `most` bytes.

    All bodies that are being received together hold at most `MAX_HELD` bytes; 503 beyond.
    """

    def __init__(self, app: ASGIApp, most: int = MAX_BYTES) -> None:
        self.app, self.most, self.held = app, most, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared[:20]) > self.most:
            await self._too_long(f"{int(declared[:20])}")(scope, receive, send)
            return
        body, more = bytearray(), True
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                part = message.get("body", b"")
                body += part
                self.held += len(part)
                more = message.get("more_body", False)
                if len(body) > self.most:
                    await self._too_long(f"more than {self.most}")(scope, receive, send)
                    return
                if self.held > MAX_HELD:
                    await error_answer(503, "too much is being received; try again", RETRY)(scope, receive, send)
                    return
        finally:
            self.held -= len(body)
        await self.app(scope, _with_body(bytes(body), receive), send)

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
