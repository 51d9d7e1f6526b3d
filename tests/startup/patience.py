"""Limits that guard tests against a hang. They are no measurements: a test states an order or an event."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable


def patience(seconds: float) -> float:
    """Returns a limit in seconds, times `MODEL_QUIRKS_TESTS_PATIENCE`, which is 1 unless a machine needs more."""
    return seconds * _FACTOR


def until(holds: Callable[[], object], what: str, *, every_s: float = 0.02) -> None:
    """Waits until something holds.

    Raises:
        AssertionError: It does not hold within `HUNG_S`; the message says what was waited for.
    """
    end = time.monotonic() + HUNG_S
    while not holds():
        assert time.monotonic() < end, f"waited {HUNG_S:g} s for this: {what}"
        time.sleep(every_s)


async def settled(holds: Callable[[], object | Awaitable[object]]) -> None:
    """Waits in an event loop until something holds that offers no event; what says so may be a coroutine."""
    async with asyncio.timeout(HUNG_S):
        while not (await found if inspect.isawaitable(found := holds()) else found):  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.001)


_FACTOR = float(os.environ.get("MODEL_QUIRKS_TESTS_PATIENCE", "1"))
#: Seconds after which something has hung: many times what anything takes on two busy cores.
HUNG_S = patience(600)
