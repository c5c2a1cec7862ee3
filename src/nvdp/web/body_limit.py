"""Bodies are cut off before they are parsed: one that is too long is refused after `MOST_BYTES`, whatever it claims."""

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nvdp.web.limits import MOST_BYTES
from nvdp.web.refusals import refusal


class BodyLimit:
    """Reads a request's whole body, which is small, and then hands it on; 413 if it is not."""

    def __init__(self, app: ASGIApp, most: int = MOST_BYTES) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self.app(scope, receive, send)
            return
        claimed = dict(scope["headers"]).get(b"content-length", b"0")
        if claimed.isdigit() and int(claimed[:20]) > self.most:
            await self._too_long(f"{int(claimed[:20])}")(scope, receive, send)
            return
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.most:
                await self._too_long(f"more than {self.most}")(scope, receive, send)
                return
        await self.app(scope, _replayed(body, receive), send)

    def _too_long(self, size: str) -> Response:
        return refusal(413, f"the body holds {size} bytes; expected at most {self.most}")


def _replayed(body: bytes, receive: Receive) -> Receive:
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return unread.pop() if unread else await receive()

    return receive_again
