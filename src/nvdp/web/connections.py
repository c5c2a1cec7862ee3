"""Connections to the server: how many there may be, and how long a request may take to arrive.

A connection that has not sent a whole request in time is closed. Where there are too many connections, one that has
sent only a part of a request makes room for a new one: slow clients cannot keep others out.
"""

import asyncio
import json
import resource
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from nvdp.web.limits import (
    FINISH_SECONDS,
    KEEP_ALIVE_SECONDS,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_OF_ONE,
    REQUEST_SECONDS,
)

OTHER_FILES = 64  # that the process needs besides connections


def most_connections() -> int:
    """`MAX_CONNECTIONS`, or fewer if the process may not open so many files."""
    return max(8, min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHER_FILES))


class Connection(H11Protocol):
    """One connection of uvicorn with these limits."""

    _deadline: asyncio.TimerHandle | None = None
    most = most_connections()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection, or refuse it if there are too many."""
        super().connection_made(transport)
        visitor = self.client[0] if self.client else ""
        own = [each for each in self.connections if isinstance(each, Connection) and each.visitor == visitor]
        if len(own) > MAX_CONNECTIONS_OF_ONE or len(self.connections) > self.most:
            among = own if len(own) > MAX_CONNECTIONS_OF_ONE else list(self.connections)
            late = {each: each._deadline for each in among if isinstance(each, Connection) and each is not self}
            half_sent = {each: deadline.when() for each, deadline in late.items() if deadline is not None}
            if half_sent:
                min(half_sent, key=lambda each: half_sent[each]).end(408, "no whole request came in time")
            else:
                self.end(503, f"there are {len(self.connections)} connections, which is the limit; try again")
                return
        self._expect_request()

    @property
    def visitor(self) -> str:
        """The address at the other end."""
        return self.client[0] if self.client else ""

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._expect_request()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end has gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server stops: a request that has not come whole is not waited for."""
        if self._deadline is not None:
            self._stop_waiting()
            self.transport.close()
        else:
            super().shutdown()

    def end(self, status: int, reason: str) -> None:
        """Answer with an error and close; a request that has been begun gets no other answer."""
        self._stop_waiting()
        if not self.transport.is_closing():
            if self.cycle is None or not self.cycle.response_started:
                body = json.dumps({"detail": reason}).encode()
                phrase = {408: b"Request Timeout", 503: b"Service Unavailable"}[status]
                head = b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nRetry-After: 1\r\n" % (status, phrase)
                self.transport.write(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            self.transport.close()

    def _expect_request(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            late = (408, f"no whole request came within {REQUEST_SECONDS:g} seconds")
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.end, *late)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def server_of(app: Any) -> uvicorn.Server:
    """A server of an application with these limits."""
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_level="error",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=FINISH_SECONDS,
        h11_max_incomplete_event_size=16_384,
    )
    return uvicorn.Server(config)
