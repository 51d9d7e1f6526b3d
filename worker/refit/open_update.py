"""A weight update whose steps come as calls, one after the other, until one of them ends it or none comes any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from worker.engine.engine import Engine
from worker.errors import TransferError, UpdateOrderError
from worker.refit.engine import receiving
from worker.refit.engine.transfer import BACKEND
from worker.refit.refitting import Refitting

#: What a worker is to do, its arguments, and what is done when it has.
_Steps: TypeAlias = asyncio.Queue[tuple[Callable[..., Any], Mapping[str, Any], asyncio.Future[None]]]


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
        #: Has the engine paused, and carries out the steps of an update.
        self._refit: asyncio.Task[None] | None = None
        #: Those of the update that is open; None as soon as it takes no more.
        self._steps: _Steps | None = None
        self._last: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether an update is open; the engine is paused then, and cannot be queried while it waits for a part."""
        return self._steps is not None and self._refit is not None and not self._refit.done()

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
        self._steps, self._last = asyncio.Queue(), None
        work = partial(self._refitting.update, partial(self._take, self._steps, draft), None)
        self._refit = asyncio.create_task(self._refitting.lock.run(work))
        self._refit.add_done_callback(self._closed)
        await self._step(self._refit, self._steps, receiving.begin, draft=draft)

    async def take_part(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Takes a part of the open update.

        Raises:
            UpdateOrderError: None is open.
            RefitError: It could not be taken, and the update has ended; the message says what the engine holds now.
        """
        update, refitting = await self._opened(), self._refitting
        refitting.last = "http"
        if refitting.backend == BACKEND and isinstance(update_info, dict):
            section = refitting.sender.section
            finite = section.finite or bool(update_info.get("finite"))
            update_info = {**update_info, "finite": finite, "dummy": refitting.dummy, "timeout_s": section.timeout_s}
        await self._step(*update, receiving.part, update_info=update_info)

    async def finish(self, version: str | None = None) -> None:
        """Puts the weights of the open update in force.

        Args:
            version: Their label; None for the next number.

        Raises:
            UpdateOrderError: No update is open, or it still takes a part.
            RefitError: The weights could not be put in force; the message says what the engine holds now.
        """
        update = await self._opened()
        if self._last is not None and not self._last.done():
            raise UpdateOrderError("a step of the weight update is under way: finish it when update_weights has returned")
        await self._step(*update, receiving.end, version=version)

    async def _opened(self) -> tuple[asyncio.Task[None], _Steps]:
        refit, steps = self._refit, self._steps
        if refit is not None and steps is not None and not refit.done():
            return refit, steps
        last = ""
        if refit is not None:
            await asyncio.wait((refit,))
            last = "" if (error := _problem(refit)) is None else f": the last one failed ({error})"
        raise UpdateOrderError(f"no weight update is open{last}; start one with start_weight_update")

    def _closed(self, refit: asyncio.Task[None]) -> None:
        if isinstance(getattr(error := _problem(refit), "__cause__", None), TransferError):  # the trainer may be gone
            self._warn(str(error))

    async def _step(self, refit: asyncio.Task[None], steps: _Steps, function: Callable[..., Any], **named: Any) -> None:
        """Has every worker make a step; returns once they have, or once the update has ended, with the error that ended it."""
        self._last = made = asyncio.get_running_loop().create_future()
        steps.put_nowait((function, named, made))
        await asyncio.wait((made, refit), return_when=asyncio.FIRST_COMPLETED)
        if not made.done():
            refit.result()
            if function is not receiving.end:
                raise UpdateOrderError("the weight update ended before this part was taken: send the part in another update")

    async def _take(self, steps: _Steps, draft: bool) -> tuple[list[dict[str, Any]], str | None] | None:
        """Carries out the steps; returns what each process answered, and the weights' label, or None if no weights came.

        Raises:
            TransferError: No step came for too long; the trainer is taken to be gone.
        """
        came, section = False, self._refitting.sender.section
        try:
            while True:
                try:
                    async with self._engine.watched(), asyncio.timeout(section.timeout_s):
                        function, named, made = await steps.get()
                except TimeoutError:
                    raise TransferError(
                        f"the weight update was given up: no call came for {section.timeout_s:g} s (refit.timeout_s)"
                    ) from None
                if function is receiving.end:
                    answers = await self._engine.call(receiving.end, draft=draft, finite=section.finite)
                    return (answers, named["version"]) if came and not draft else None
                await self._engine.call(function, **named)
                came = came or function is receiving.part
                made.set_result(None)
        except Exception:
            await self._engine.call(receiving.abandon)
            raise
        finally:
            self._steps = None


def _problem(refit: asyncio.Task[None]) -> BaseException | None:
    return None if refit.cancelled() else refit.exception()
