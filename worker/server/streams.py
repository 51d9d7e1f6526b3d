"""Streamed replies: when the client leaves or the worker stops them, the engine's request is aborted too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from worker.server.errors import RequestError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_T = TypeVar("_T")
Explain = Callable[[Exception], RequestError]


class Running:
    """The requests that are being answered."""

    def __init__(self) -> None:
        self._stops: set[asyncio.Future[str]] = set()

    def __len__(self) -> int:
        return len(self._stops)

    def abort(self, reason: str) -> None:
        """Aborts all of them; their clients get the reason with status 503."""
        for stop in self._stops:
            if not stop.done():
                stop.set_result(reason)

    async def finish(self, work: Coroutine[Any, Any, _T], receive: Receive) -> _T:
        """Awaits the work; if the client leaves or the request is aborted, cancels it once and waits for its end.

        Args:
            work: What to do.
            receive: The ASGI channel of the client.

        Raises:
            ClientDisconnect: The client left.
            RequestError: The request was aborted. Its reason takes precedence over the engine's own result of the abort.
        """
        stop: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._stops.add(stop)
        working = asyncio.create_task(work)
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait((working, leaving, stop), return_when=asyncio.FIRST_COMPLETED)
            if working.done() and (working.exception() is None or not stop.done()):
                return working.result()
        finally:
            self._stops.discard(stop)
            for task in (working, leaving):
                task.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)
        if stop.done():
            raise RequestError(stop.result(), status=503)
        raise ClientDisconnect


class EventStream(Response):
    """Server-sent events; if the client leaves, their source is closed, at once and in every case.

    Starlette's own response leaves a source that waits for the network to the garbage collector, and its cancel scope
    interrupts the abort that the engine is being sent.

    Args:
        first: The first event.
        rest: The others.
        running: Where the request counts as running.
        explain: Makes an error for the client of what goes wrong.
    """

    media_type = "text/event-stream"

    def __init__(self, first: str, rest: AsyncGenerator[str, None], running: Running, explain: Explain) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._running = running
        self._explain = explain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Sends the events."""
        async with aclosing(self._rest):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                await self._running.finish(self._send(send), receive)
            except ClientDisconnect:
                return
            except Exception as error:
                last = json.dumps(self._explain(error).body())
                await _send_body(send, f"data: {last}\n\ndata: [DONE]\n\n")
            await _send_body(send, "", more=False)

    async def _send(self, send: Send) -> None:
        await _send_body(send, self._first)
        async for event in self._rest:
            await _send_body(send, event)


async def begun(events: AsyncGenerator[str, None], running: Running, explain: Explain) -> Response:
    """Waits for the first event, so that a request that the engine refuses still gets its own status.

    Args:
        events: Server-sent events.
        running: Where the request counts as running.
        explain: Makes an error for the client of what goes wrong later.

    Raises:
        RequestError: vLLM's first event is an error.
    """
    try:
        first = await anext(events)
    except BaseException:
        await events.aclose()
        raise
    if first.startswith('data: {"error"'):
        await events.aclose()
        error = json.loads(first.removeprefix("data: "))["error"]
        raise RequestError(error["message"], status=error["code"], parameter=error.get("param"))
    return EventStream(first, events, running, explain)


async def _send_body(send: Send, text: str, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": more})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
