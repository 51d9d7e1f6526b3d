"""A weight update whose steps come as calls, one after the other, until one of them ends it or none comes any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from worker.engine.engine import Engine
from worker.errors import TransferError, UpdateOrderError
from worker.refit.engine import receiving
from worker.refit.engine.transfer import BACKEND
from worker.refit.refitting import Refitting


class UpdateSteps:
    """Refits of an engine by calls of a trainer elsewhere, one for each step.

    Args:
        refitting: What pauses the engine and puts weights in force.
        engine: The engine.
        warn: Warns the user.
    """

    def __init__(self, refitting: Refitting, engine: Engine, warn: Callable[..., None]) -> None:
        self._refitting = refitting
        self._engine = engine
        self._warn = warn
        self._open: OpenUpdate | None = None
        self._last_problem = ""

    @property
    def is_open(self) -> bool:
        """Whether an update is open; the engine is paused then, and cannot be queried while it waits for a part."""
        return self._open is not None and not self._open.is_over

    def check_closed(self) -> None:
        """Makes sure that no update is open.

        Raises:
            UpdateOrderError: One is.
        """
        if self.is_open:
            raise UpdateOrderError(
                "a weight update is open: finish it first. It is given up, and another one can begin, when no call comes for "
                f"{self._refitting.sender.section.timeout_s:g} s (refit.timeout_s)"
            )

    async def initialize(self, init_info: dict[str, Any]) -> None:
        """Has the weight-transfer engine of every process join its trainer."""

        async def work() -> None:
            async with self._refitting.paused(clear_cache=False):
                await self._engine.call(receiving.join, init_info)

        self.check_closed()
        if self._refitting.backend == BACKEND:
            init_info = {**init_info, "timeout_s": self._refitting.sender.section.timeout_s}
        await self._refitting.lock.run(work)

    async def begin(self, *, draft: bool = False) -> None:
        """Begins an update; until it ends, nothing is generated and requests wait.

        Args:
            draft: Of the draft model.

        Raises:
            UpdateOrderError: Another one is open.
            RefitError: The weights sleep, or the engine cannot begin.
        """
        self.check_closed()
        refitting = self._refitting
        section = refitting.sender.section
        self._open = update = OpenUpdate(self._engine, draft=draft, limit_s=section.timeout_s, finite=section.finite)
        update.refit = asyncio.create_task(refitting.lock.run(lambda: refitting.update(update.take, None)))
        update.refit.add_done_callback(partial(self._closed, update))
        await update.step(receiving.begin, draft=draft)

    async def take_part(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Takes a part of the open update.

        Raises:
            UpdateOrderError: None is open.
            RefitError: It could not be taken, and the update has ended; the message says what the engine holds now.
        """
        update, refitting = self._opened(), self._refitting
        refitting.last = "http"
        if refitting.backend == BACKEND and isinstance(update_info, dict):
            section = refitting.sender.section
            finite = section.finite or bool(update_info.get("finite"))
            update_info = {**update_info, "finite": finite, "dummy": refitting.dummy, "timeout_s": section.timeout_s}
        await update.step(receiving.part, update_info=update_info)

    async def finish(self, version: str | None = None) -> None:
        """Puts the weights of the open update in force.

        Args:
            version: Their label; None for the next number.

        Raises:
            UpdateOrderError: No update is open, or it still takes a part.
            RefitError: The weights could not be put in force; the message says what the engine holds now.
        """
        await self._opened().end(version)

    def _opened(self) -> OpenUpdate:
        if self._open is None or self._open.is_over:
            raise UpdateOrderError(f"no weight update is open{self._last_problem}; start one with start_weight_update")
        return self._open

    def _closed(self, update: OpenUpdate, refit: asyncio.Task[None]) -> None:
        """An update has ended; who made its last step gets its error, and so does whoever continues all the same."""
        update.is_over = True
        error = None if refit.cancelled() else refit.exception()
        self._last_problem = "" if error is None else f": the last one failed ({error})"
        if error is not None and isinstance(error.__cause__, TransferError):  # the trainer may be gone
            self._warn(str(error))


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
        self._last: asyncio.Future[None] | None = None
        self.is_over = False

    async def step(self, function: Callable[..., Any], **named: Any) -> None:
        """Has every worker make a step; returns once they have.

        Raises:
            RefitError: The step failed, which ended the update.
            EngineDiedError: A process of the engine died.
        """
        self._last = made = asyncio.get_running_loop().create_future()
        self._steps.put_nowait((function, named, made))
        await asyncio.wait((made, self.refit), return_when=asyncio.FIRST_COMPLETED)
        if not made.done():
            self.refit.result()  # raises why it has ended

    async def end(self, version: str | None) -> None:
        """Ends the update; returns once the weights are in force. Errors as for `step`, and `UpdateOrderError` during one."""
        if self._last is not None and not self._last.done():
            raise UpdateOrderError("a step of the weight update is under way: finish it when update_weights has returned")
        await self.step(receiving.end, version=version)
        await asyncio.shield(self.refit)

    async def take(self) -> tuple[list[dict[str, Any]], str | None] | None:
        """Carries out the steps; for `worker.refit.refitting.Refitting`, which pauses the engine meanwhile.

        Returns:
            What each process answered, and the label of the weights; None if the model got no weights.

        Raises:
            TransferError: No step came for too long.
        """
        came = False
        try:
            while True:
                try:
                    async with self._engine.watched(), asyncio.timeout(self._limit_s):
                        function, named, made = await self._steps.get()
                except TimeoutError:
                    raise TransferError(
                        f"the weight update was given up: no call came for {self._limit_s:g} s (refit.timeout_s)"
                    ) from None
                if function is receiving.end:
                    answers = await self._engine.call(receiving.end, draft=self._draft, finite=self._finite)
                    return (answers, named["version"]) if came and not self._draft else None
                await self._engine.call(function, **named)
                came = came or function is receiving.part
                if not made.done():
                    made.set_result(None)
        except Exception:
            self.is_over = True
            await self._engine.call(receiving.abandon)
            raise
