"""The engine as vLLM's routes for trainers call it: every call in turn with the worker's own refits, pauses and sleeps."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from worker.engine import vllm_adapter
from worker.errors import SleepError


class TrainerClient:
    """An ``EngineClient`` of vLLM for its own routes.

    What changes weights, pauses or sleeps goes through the worker, so that nothing is generated from half-new weights.
    Everything else is the engine's, and ends with an error if the engine does.

    Args:
        worker: The `worker.VllmAsyncGenerationWorker` of the engine.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # vLLM's route for aborts asserts an AsyncLLM
        """The class of the engine."""
        return type(self._worker.engine.llm)

    def __getattr__(self, name: str) -> Any:
        """Returns what the engine has under that name."""
        found = getattr(self._worker.engine.llm, name)
        return self._watched(found) if inspect.iscoroutinefunction(found) else found

    def check_closed(self) -> None:
        """Raises an `UpdateOrderError` if a weight update is open."""
        self._worker.update_steps.check_closed()

    async def in_turn(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Makes a call once no refit, pause or sleep is under way."""
        return await self._worker.refitting.between(lambda _: call(*arguments))

    async def pause_generation(self, *, mode: str, clear_cache: bool = True, wait_for_inflight_requests: bool = False) -> None:
        """Pauses; the last argument is what the routes of vLLM before 0.32 hand on for the mode ``wait``."""
        await self._worker.pause_async("wait" if wait_for_inflight_requests else mode, clear_cache)

    async def is_paused(self) -> bool:
        """Returns whether nothing is generated; the engine does not answer while it waits for a part of an update."""
        return self._worker.update_steps.is_open or bool(await self._watched(self._worker.engine.llm.is_paused)())

    async def get_weight_version(self) -> str:
        """Returns the label of the weights, also meanwhile."""
        return str(self._worker.engine.readiness.version)

    async def resume_generation(self) -> None:
        """Resumes."""
        await self._worker.resume_async()

    async def init_weight_transfer_engine(self, request: Any) -> None:
        """Has the engine join its trainer."""
        await self._worker.update_steps.initialize(request.init_info)

    async def shutdown_weight_transfer_engine(self) -> None:
        """Has the engine leave its trainer."""
        await self.in_turn(self._worker.engine.llm.shutdown_weight_transfer_engine)

    async def start_weight_update(self) -> None:
        """Begins an update."""
        await self._worker.update_steps.begin()

    async def start_draft_weight_update(self) -> None:
        """Begins an update of the draft model."""
        await self._worker.update_steps.begin(draft=True)

    async def update_weights(self, request: Any) -> None:
        """Takes a part of the update."""
        await self._worker.update_steps.take_part(request.update_info)

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Puts the update in force."""
        await self._worker.update_steps.finish(weight_version)

    async def update_weight_version(self, new_version: str) -> None:
        """Labels the weights."""
        await self.in_turn(vllm_adapter.label_weights, self._worker.engine.llm, new_version)
        self._worker.engine.readiness.version = new_version

    async def collective_rpc(self, method: str) -> None:
        """Zeroes the weights, which is what ``/weight_checker`` calls it for; nothing is generated before a refit."""
        readiness = self._worker.engine.readiness
        readiness.broken(f"a trainer called {method}; refit before generating")
        await self.in_turn(self._worker.engine.llm.collective_rpc, method)

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Gives memory back."""
        if mode != "abort":
            raise SleepError(f"sleep ends what is in flight (mode 'abort'); it does not take mode {mode!r}")
        await self._worker.sleep_async(level)

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        """Takes memory again; returns whether the engine is awake."""
        await self._worker.wake_up_async(tags=tags)
        return not await self._worker.engine.llm.is_sleeping()

    async def release_kv_cache_memory(self) -> None:
        """Is refused: the worker would not know of it."""
        raise SleepError("release_kv_cache_memory is not offered here; call /sleep, and /wake_up?tags=weights")

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        async def watched(*arguments: Any, **named: Any) -> Any:
            async with self._worker.engine.watched():
                return await call(*arguments, **named)

        return watched
