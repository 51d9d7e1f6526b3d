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
        self._open = update = OpenUpdate(self._refitting, self._engine, draft=draft)
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
            error = None if self._open is None else _problem(self._open.refit)
            last = "" if error is None else f": the last one failed ({error})"
            raise UpdateOrderError(f"no weight update is open{last}; start one with start_weight_update")
        return self._open

    def _closed(self, update: OpenUpdate, refit: asyncio.Task[None]) -> None:
        update.is_over = True
        if isinstance(getattr(error := _problem(refit), "__cause__", None), TransferError):  # the trainer may be gone
            self._warn(str(error))


class OpenUpdate:
    """The steps of one update, from the callers to the refit that waits for them.

    Args:
        refitting: What pauses the engine and puts weights in force.
        engine: The engine.
        draft: The update is for the draft model.

    Attributes:
        refit: The task that has the engine paused, and carries out the steps.
        is_over: No further step is taken; the next update may begin, and waits for the end of the task.
    """

    def __init__(self, refitting: Refitting, engine: Engine, *, draft: bool) -> None:
        self._engine = engine
        self._draft = draft
        self._section = refitting.sender.section
        self._steps: asyncio.Queue[tuple[Callable[..., Any], Mapping[str, Any], asyncio.Future[None]]] = asyncio.Queue()
        self._last: asyncio.Future[None] | None = None
        self.is_over = False
        self.refit = asyncio.create_task(refitting.lock.run(lambda: refitting.update(self._take, None)))

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

    async def _take(self) -> tuple[list[dict[str, Any]], str | None] | None:
        """Carries out the steps; returns what each process answered, and the weights' label, or None if no weights came.

        Raises:
            TransferError: No step came for too long; the trainer is taken to be gone.
        """
        came, limit = False, self._section.timeout_s
        try:
            while True:
                try:
                    async with self._engine.watched(), asyncio.timeout(limit):
                        function, named, made = await self._steps.get()
                except TimeoutError:
                    raise TransferError(
                        f"the weight update was given up: no call came for {limit:g} s (refit.timeout_s)"
                    ) from None
                if function is receiving.end:
                    answers = await self._engine.call(receiving.end, draft=self._draft, finite=self._section.finite)
                    return (answers, named["version"]) if came and not self._draft else None
                await self._engine.call(function, **named)
                came = came or function is receiving.part
                if not made.done():
                    made.set_result(None)
        except Exception:
            self.is_over = True
            await self._engine.call(receiving.abandon)
            raise


def _problem(refit: asyncio.Task[None]) -> BaseException | None:
    return None if refit.cancelled() or not refit.done() else refit.exception()
