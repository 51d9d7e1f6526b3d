"""The engine of a parity run: one at a time, started anew only where a setting needs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from quirks_core.switches import Wishes
from worker.async_worker import VllmAsyncGenerationWorker
from worker.config import GenerationConfig
from worker.parity.session import Session, Tell, running


class Engines:
    """Gives a session for a configuration, and keeps its engine until another one is asked for."""

    def __init__(
        self,
        worker: Callable[[GenerationConfig, Wishes], VllmAsyncGenerationWorker],
        session: Callable[[VllmAsyncGenerationWorker], Session],
        tell: Tell,
    ) -> None:
        """Keeps how to make workers and sessions.

        Args:
            worker: Makes a worker that is not running; fails if the configuration is refused.
            session: Makes the session of a running worker.
            tell: Called before an engine is started.
        """
        self._worker = worker
        self._make = session
        self._tell = tell
        self._stack = AsyncExitStack()
        self._running: tuple[GenerationConfig, Wishes] | None = None
        self._session: Session | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        await self.close()

    async def session(self, config: GenerationConfig, wishes: Wishes) -> Session:
        """Returns the session of an engine with this configuration; starts one if it does not run.

        Args:
            config: The configuration.
            wishes: Quirks to turn off or on.

        Raises:
            RefusedError: The configuration cannot work.
            EngineStartError: The engine died while it started.
        """
        if self._session is None or self._running != (config, wishes):
            worker = self._worker(config, wishes)  # before the engine that runs is given up
            await self.close()
            self._tell("starting an engine")
            self._session = self._make(await self._stack.enter_async_context(running(worker)))
            self._running = (config, wishes)
        return self._session

    async def close(self) -> None:
        """Stops the engine; the next session starts another."""
        self._session = self._running = None
        await self._stack.aclose()
