"""What a trainer imports: the generation worker and its configuration. Importing it starts nothing and loads no engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from worker.config import GenerationConfig

if TYPE_CHECKING:
    from worker.async_worker import VllmAsyncGenerationWorker

__all__ = ["GenerationConfig", "VllmAsyncGenerationWorker"]


def __getattr__(name: str) -> Any:
    """Imports the worker when it is first asked for: it needs torch, the configuration does not."""
    if name == "VllmAsyncGenerationWorker":
        from worker.async_worker import VllmAsyncGenerationWorker

        return VllmAsyncGenerationWorker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
