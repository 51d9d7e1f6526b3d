"""What a trainer imports: the generation worker and its configuration. Importing it starts nothing and loads no engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quirks_core.configuration.config import GenerationConfig
    from worker.async_worker import VllmAsyncGenerationWorker
    from worker.group.group import WorkerGroup

__all__ = ["GenerationConfig", "VllmAsyncGenerationWorker", "WorkerGroup"]

_LAZY = {
    "GenerationConfig": "quirks_core.configuration.config",
    "VllmAsyncGenerationWorker": "worker.async_worker",
    "WorkerGroup": "worker.group.group",
}


def __getattr__(name: str) -> Any:
    """Imports a name on first use: a worker needs torch."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
