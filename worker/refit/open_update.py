"""A weight update whose steps come as calls, one after the other, until one of them ends it or none comes any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from worker.engine.engine import Engine
from worker.errors import TransferError
from worker.refit.engine import receiving


class OpenUpdate:
    """The steps of one update, from the callers to the refit that waits for them.

    Args:
        engine: The engine.
        draft: The update is for the draft model.
        limit_s: Seconds without a call after which the trainer is taken to be gone.
        finite: Refuse weights that are NaN or infinite.

    Attributes:
        refit: The task that has the engine paused, and calls `take` once.
        is_over: No further step is taken; the next update may begin, and waits for the end of the task.
    """

    refit: asyncio.Task[None]

    def __init__(self, engine: Engine, *, draft: bool, limit_s: float, finite: bool) -> None:
        self._engine = engine
        self._draft = draft
        self._limit_s = limit_s
        self._finite = finite
        self._steps: asyncio.Queue[tuple[Callable[..., Any], Mapping[str, Any], asyncio.Future[None]]] = asyncio.Queue()
        self._version: str | None = None
        self.is_over = False

    async def step(self, function: Callable[..., Any], **named: Any) -> None:
        """Has every worker make a step; returns once they have.

        Raises:
            RefitError: The step failed, which ended the update.
            EngineDiedError: A process of the engine died.
        """
        made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._steps.put_nowait((function, named, made))
        await asyncio.wait((made, self.refit), return_when=asyncio.FIRST_COMPLETED)
        if not made.done():
            self.refit.result()  # raises why it has ended

    async def end(self, version: str | None) -> None:
        """Ends the update; returns once the weights are in force. Errors as for `step`."""
        self._version = version
        await self.step(receiving.end)
        await asyncio.shield(self.refit)

    async def take(self, clean: bool) -> tuple[list[dict[str, Any]], str | None] | None:
        """Carries out the steps; for `worker.refit.refitting.Refitting`, which pauses the engine meanwhile.

        Args:
            clean: Zero the KV cache at the end.

        Returns:
            What each process answered, and the label of the weights; None if the model got no weights.

        Raises:
            TransferError: No step came for too long.
        """
        came = False
        try:
            while True:
                function, named, made = await self._next()
                if function is receiving.end:
                    answers = await self._engine.call(receiving.end, clean=clean, draft=self._draft, finite=self._finite)
                    return (answers, self._version) if came and not self._draft else None
                await self._engine.call(function, **named)
                came = came or function is receiving.part
                if not made.done():
                    made.set_result(None)
        except Exception:
            self.is_over = True
            await self._engine.call(receiving.abandon)
            raise

    async def _next(self) -> Any:
        try:
            async with self._engine.watched(), asyncio.timeout(self._limit_s):
                return await self._steps.get()
        except TimeoutError:
            raise TransferError(
                f"the weight update was given up: no call came for {self._limit_s:g} s (refit.timeout_s)"
            ) from None
