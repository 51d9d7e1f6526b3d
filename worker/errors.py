"""What can go wrong with a running engine."""

from __future__ import annotations

from quirks_core.errors import QuirksError


class EngineStartError(QuirksError):
    """The engine died while it started; the message ends with its last error lines."""


class GenerationTimeoutError(QuirksError):
    """A request took longer than ``request.timeout_s``; it was aborted."""


class BatchError(QuirksError):
    """A batch does not have the promised form; nothing was sent to the engine."""

    exit_code = 2
