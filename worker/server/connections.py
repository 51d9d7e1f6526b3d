"""Limits of connections, which apply before the key is checked: size of the headers, and time to send a request.

uvicorn limits neither with its default parser, and closes idle connections only after their first reply.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # vLLM requires it, by uvicorn[standard]

from worker.server.streams import problem, refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

#: Seconds that a client with too large headers gets to read the reply.
_LINGER_S = 2.0


def bounded_connection(*, max_header: int, read_timeout_s: float) -> type[asyncio.Protocol]:
    """Returns uvicorn's HTTP protocol with limits.

    Args:
        max_header: Largest size of incomplete headers in bytes; then the reply has status 431.
        read_timeout_s: Seconds from the first byte of a request (or from the connect) to the end of its headers, and between
            two pieces of its body; then the connection is closed.
    """

    class Connection(HttpToolsProtocol):
        """One connection."""

        def connection_made(self, transport: Any) -> None:
            self._in_body = False
            #: Bytes of incomplete headers; 0 between two requests.
            self._head = 0
            self._timer: asyncio.TimerHandle | None = None
            self._refused = False
            super().connection_made(transport)
            self._arm()

        def data_received(self, data: bytes) -> None:
            if self._refused:
                return
            self._head += 0 if self._in_body else len(data)
            super().data_received(data)
            if self.transport.is_closing():
                self._disarm()
            elif self._head > max_header:
                self._refuse()
            elif self._in_body:
                self._disarm()
                self._arm()
            elif not self._head:
                self._disarm()
            elif self._timer is None:
                self._arm()

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            self._head = self._head or 1  # another request in the same piece of data
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_body, self._head = True, 0
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._in_body, self._head = False, 0
            self._disarm()
            super().on_message_complete()

        def _arm(self) -> None:
            self._timer = self.loop.call_later(read_timeout_s, self.transport.close)

        def _disarm(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _refuse(self) -> None:
            self._disarm()
            if self.cycle is not None and not self.cycle.response_complete:  # another reply would corrupt its reply
                self.transport.close()
                return
            body = json.dumps(_too_large(max_header)).encode()
            head = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\nConnection: close\r\n"
            self.transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            # Closing at once would reset the connection while the client sends, and the reply would be lost.
            self._refused = True
            self.transport.write_eof()
            self._timer = self.loop.call_later(min(_LINGER_S, read_timeout_s), self.transport.close)

    return Connection


class HeaderLimit:
    """Refuses requests with complete headers that are too large.

    Args:
        app: The next application.
        most: Largest path and headers together, in bytes.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        size = sum(len(name) + len(value) for name, value in scope.get("headers", ()))
        size += len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        if size > self._most:
            await refusal(_too_large(self._most), {"Connection": "close"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _too_large(most: int) -> dict[str, Any]:
    return problem(f"the request's headers are larger than server.max_header_kb = {most / 1e3:g}", status=431)
