"""Waits for the engine's results of one request: with a time limit, an error for a dead engine, and no incomplete replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

from worker.errors import GenerationTimeoutError
from worker.server.errors import RequestError
from worker.server.record import Record

#: The finish reasons of requests that vLLM's engine removed before they were finished.
_CUT_OFF = {"abort", "error"}


class Supervision:
    """How a server waits for its engine.

    Args:
        watched: Returns a context that raises `EngineDiedError` if the engine dies in it.
        timeout_s: Seconds after which a request is aborted; None for never.
    """

    def __init__(self, watched: Callable[[], AbstractAsyncContextManager[Any]], timeout_s: float | None) -> None:
        self.watched = watched
        self._timeout_s = timeout_s

    async def results(
        self, results: AsyncGenerator[Any, None], record: Record, *, grammar: str | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yields and records the engine's results of one request; closing it aborts the request in the engine.

        It ends at the first failure and records it, because vLLM's handlers would replace its message.

        Args:
            results: vLLM's ``RequestOutput``s. Aborted ones are not yielded.
            record: Where to note them.
            grammar: The field of the request that holds the grammar of the reply; None if it follows none.
        """
        end = None if self._timeout_s is None else asyncio.get_running_loop().time() + self._timeout_s
        async with aclosing(results):
            while record.failure is None:
                try:
                    result = await self._next(results, end)
                    _check_complete(result, grammar if record.empty else None)
                except Exception as error:
                    record.failure = error
                    return
                if result is None:
                    return
                record.add(result)
                yield result

    async def _next(self, results: AsyncGenerator[Any, None], end: float | None) -> Any:
        """Returns the next result; None after the last.

        The limits are around each step, because the steps of a stream run in different tasks.
        """
        try:
            async with self.watched(), asyncio.timeout_at(end) as deadline:
                result = await anext(results, None)
        except TimeoutError:
            if not deadline.expired():
                raise  # the engine's own
            limit_s = self._timeout_s or 0.0
            problem = f"the request took longer than request.timeout_s = {limit_s:g} s, and was aborted"
            raise RequestError(f"{problem}; {GenerationTimeoutError.remedy(limit_s)}", status=504) from None
        return result


def _check_complete(result: Any, grammar: str | None) -> None:
    """Refuses a result that the engine cut off.

    Raises:
        RequestError: It was cut off, or nothing was generated because the engine cannot compile the grammar.
    """
    reasons = {output.finish_reason for output in result.outputs} if result is not None else set()
    if "error" in reasons and grammar is not None:
        raise RequestError(
            f"{grammar}: the engine cannot compile this schema or grammar; look for one that refers to itself without end",
            parameter=grammar,
        )
    if cut_off := reasons & _CUT_OFF:
        raise RequestError(
            f"the engine ended the request before its reply was complete (finish reason {min(cut_off)!r}): generation was "
            "paused with mode 'abort', or a refit failed meanwhile; send the request again",
            status=503,
        )
