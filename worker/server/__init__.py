"""The OpenAI-compatible server in the generation worker's own event loop; vLLM is imported when it is built."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from worker.server.config import ServerSection
from worker.server.errors import PrefixTokensError, RequestError, ServerStartError

if TYPE_CHECKING:
    from worker.server.prefix_tokens import replace_prefix_tokens
    from worker.server.server import OpenAIServer

__all__ = [
    "OpenAIServer",
    "PrefixTokensError",
    "RequestError",
    "ServerSection",
    "ServerStartError",
    "replace_prefix_tokens",
]

_LAZY = {"OpenAIServer": "worker.server.server", "replace_prefix_tokens": "worker.server.prefix_tokens"}


def __getattr__(name: str) -> Any:
    """Imports what is heavy, or needs the configuration that this package is part of, when it is asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
