"""A lock for work that runs to its end once it has started, also if its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def to_the_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Runs something to its end; if the caller is cancelled, the cancellation is raised only then."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait((running,))
        if not running.cancelled():
            running.exception()  # marks the error as retrieved: no other task will
        raise


class SerialLock(asyncio.Lock):
    """One thing at a time, and each to its end."""

    async def run(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Waits until nothing else is under way, then does the work to its end."""

        async def once() -> _T:
            try:
                return await work()
            finally:
                self.release()

        await self.acquire()
        return await to_the_end(once())
