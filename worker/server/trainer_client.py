"""The engine as vLLM's routes for trainers call it: every call in turn with the worker's own refits, pauses and sleeps."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from worker.engine import vllm_adapter
from worker.engine.engine import Engine
from worker.errors import SleepError, TransferError, UpdateOrderError
from worker.refit.engine import receiving
from worker.refit.engine.transfer import BACKEND
from worker.refit.refitting import Refitting

#: What a worker is to do, its arguments, and what is done when it has.
_Steps: TypeAlias = asyncio.Queue[tuple[Callable[..., Any], Mapping[str, Any], asyncio.Future[None]]]


class TrainerClient:
    """An ``EngineClient`` of vLLM for its own routes.

    What changes weights, pauses or sleeps goes through the worker, so that nothing is generated from half-new weights. A weight
    update is one refit, whose steps come as calls until one of them ends it or none comes any more. Everything else is the
    engine's, and ends with an error if the engine does.

    Args:
        worker: The `worker.VllmAsyncGenerationWorker` of the engine.
        engine: The engine.
        refitting: What pauses the engine and puts weights in force.
        warn: Warns the user.
    """

    def __init__(self, worker: Any, engine: Engine, refitting: Refitting, warn: Callable[..., None]) -> None:
        self._worker = worker
        self._engine = engine
        self._refitting = refitting
        self._warn = warn
        #: Has the engine paused, and carries out the steps of the last update.
        self._refit: asyncio.Task[None] | None = None
        #: Those of the update that is open; None once it takes no more. The engine does not answer while it waits for one.
        self._steps: _Steps | None = None
        self._last: asyncio.Future[None] | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # vLLM's route for aborts asserts an AsyncLLM
        """The class of the engine."""
        return type(self._engine.llm)

    def __getattr__(self, name: str) -> Any:
        """Returns what the engine has under that name."""
        found = getattr(self._engine.llm, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def watched(*arguments: Any, **named: Any) -> Any:
            async with self._engine.watched():
                return await found(*arguments, **named)

        return watched

    async def in_turn(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Makes a call once no refit, pause or sleep is under way."""
        return await self._refitting.between(lambda _: call(*arguments))

    # ---- pause and memory

    async def pause_generation(self, *, mode: str, clear_cache: bool = True, wait_for_inflight_requests: bool = False) -> None:
        """Pauses; the last argument is what the routes of vLLM before 0.32 hand on for the mode ``wait``."""
        await self._worker.pause_async("wait" if wait_for_inflight_requests else mode, clear_cache)

    async def is_paused(self) -> bool:
        """Returns whether nothing is generated, as while an update is open."""
        if self._steps is not None:
            return True
        async with self._engine.watched() as llm:
            return bool(await llm.is_paused())

    async def resume_generation(self) -> None:
        """Resumes."""
        await self._worker.resume_async()

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Gives memory back."""
        if mode != "abort":
            raise SleepError(f"sleep ends what is in flight (mode 'abort'); it does not take mode {mode!r}")
        await self._worker.sleep_async(level)

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        """Takes memory again; returns whether the engine is awake."""
        await self._worker.wake_up_async(tags=tags)
        return not await self._engine.llm.is_sleeping()

    async def release_kv_cache_memory(self) -> None:
        """Is refused: the worker would not know of it."""
        raise SleepError("release_kv_cache_memory is not offered here; call /sleep, and /wake_up?tags=weights")

    # ---- labels and values of the weights

    async def get_weight_version(self) -> str:
        """Returns the label of the weights, also while an update is open."""
        return str(self._engine.readiness.version)

    async def update_weight_version(self, new_version: str) -> None:
        """Labels the weights."""
        await self.in_turn(vllm_adapter.label_weights, self._engine.llm, new_version)
        self._engine.readiness.version = new_version

    async def collective_rpc(self, method: str) -> None:
        """Zeroes the weights, which is what ``/weight_checker`` calls it for; nothing is generated before a refit."""
        self._engine.readiness.broken(f"a trainer called {method}; refit before generating")
        await self.in_turn(self._engine.llm.collective_rpc, method)

    # ---- updates of the weights

    def check_closed(self) -> None:
        """Makes sure that no update is open.

        Raises:
            UpdateOrderError: One is.
        """
        if self._steps is not None:
            raise UpdateOrderError(
                "a weight update is open: finish it first. It is given up, and another one can begin, when no call comes for "
                f"{self._refitting.sender.section.timeout_s:g} s (refit.timeout_s)"
            )

    async def init_weight_transfer_engine(self, request: Any) -> None:
        """Has the weight-transfer engine of every process join its trainer."""

        async def work() -> None:
            async with self._refitting.paused(clear_cache=False):
                await self._engine.call(receiving.join, info)

        info = request.init_info
        if self._refitting.backend == BACKEND:
            info = {**info, "timeout_s": self._refitting.sender.section.timeout_s}
        await self._refitting.lock.run(work)

    async def shutdown_weight_transfer_engine(self) -> None:
        """Has the engine leave its trainer."""
        await self.in_turn(self._engine.llm.shutdown_weight_transfer_engine)

    async def start_weight_update(self, *, draft: bool = False) -> None:
        """Begins an update, of the draft model on request; until it ends, nothing is generated and requests wait.

        Raises:
            UpdateOrderError: Another one is open.
            RefitError: The weights sleep, or the engine cannot begin.
        """
        self.check_closed()
        self._steps = asyncio.Queue()
        work = partial(self._refitting.update, partial(self._take, self._steps, draft), None)
        self._refit = asyncio.create_task(self._refitting.lock.run(work))
        self._refit.add_done_callback(self._closed)
        await self._step(receiving.begin, draft=draft)

    async def start_draft_weight_update(self) -> None:
        """Begins an update of the draft model; errors as for `start_weight_update`."""
        await self.start_weight_update(draft=True)

    async def update_weights(self, request: Any) -> None:
        """Takes a part of the open update.

        Raises:
            UpdateOrderError: None is open.
            RefitError: It could not be taken, and the update has ended; the message says what the engine holds now.
        """
        refitting, info = self._refitting, request.update_info
        if refitting.backend == BACKEND and isinstance(info, dict):
            section = refitting.sender.section
            finite = section.finite or bool(info.get("finite"))
            info = {**info, "finite": finite, "dummy": refitting.dummy, "timeout_s": section.timeout_s}
        await self._step(receiving.part, update_info=info)

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Puts the weights of the open update in force.

        Args:
            weight_version: Their label; None for the next number.

        Raises:
            UpdateOrderError: No update is open, or it still takes a part.
            RefitError: The weights could not be put in force; the message says what the engine holds now.
        """
        if self._steps is not None and self._last is not None and not self._last.done():
            raise UpdateOrderError("a step of the weight update is under way: finish it when update_weights has returned")
        await self._step(receiving.end, version=weight_version)

    # ---- parts

    def _closed(self, refit: asyncio.Task[None]) -> None:
        if refit is self._refit:
            self._steps = None
        if isinstance(getattr(error := _problem(refit), "__cause__", None), TransferError):  # the trainer may be gone
            self._warn(str(error))

    async def _step(self, function: Callable[..., Any], **named: Any) -> None:
        """Has every worker make a step; returns once they have, or once the update has ended, with the error that ended it."""
        if (refit := self._refit) is None or (steps := self._steps) is None:
            last = ""
            if refit is not None:
                await asyncio.wait((refit,))
                last = "" if (error := _problem(refit)) is None else f": the last one failed ({error})"
            raise UpdateOrderError(f"no weight update is open{last}; start one with start_weight_update")
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
                if function is receiving.part:
                    came, self._refitting.last = True, "http"
                await self._engine.call(function, **named)
                made.set_result(None)
        except Exception:
            await self._engine.call(receiving.abandon)
            raise
        finally:
            self._steps = None


def _problem(refit: asyncio.Task[None]) -> BaseException | None:
    return None if refit.cancelled() else refit.exception()
