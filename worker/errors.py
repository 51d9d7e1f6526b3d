"""What can go wrong with a running engine."""

from __future__ import annotations

from quirks_core.base.errors import QuirksError


class EngineStartError(QuirksError):
    """The engine died while it started; the message ends with its last error lines."""


class EngineDiedError(QuirksError):
    """A process of the running engine died; the message ends with its last error lines. ``restart_async`` starts a new one."""

    #: What to do about it; a group has other methods.
    REMEDY = "call restart_async, or make a new worker"


class WorkerCallError(QuirksError):
    """A call failed in a worker process of the engine; the message says what it raised."""


class TopologyError(QuirksError):
    """The engine formed other parallel groups than planned; the message lists every process that differs."""


class RankError(QuirksError):
    """An engine of a group died, failed to start or did not answer; the message begins with its rank."""


class NotReadyError(QuirksError):
    """The engine must not generate: it sleeps, or its weights are not those of one policy. The message says what to do."""


class GenerationTimeoutError(QuirksError):
    """Requests took longer than ``request.timeout_s``; they were aborted."""


class GenerationAbortedError(QuirksError):
    """Requests were aborted by something else than their caller: a refit that failed, sleep, or a shutdown."""


class BatchError(QuirksError):
    """A batch does not have the required form; nothing was sent to the engine."""

    exit_code = 2


class RefitError(QuirksError):
    """A refit failed; the message says whether the old weights are still there."""


class RefitRejectedError(RefitError):
    """What the trainer sends differs from its announcement; the model was not changed."""


class RefitUnsupportedError(RefitError):
    """The installed vLLM cannot refit this model; further refits fail in the same way."""


class TransferError(RefitError):
    """The other side of a transfer died, closed its socket or took too long."""


class UpdateOrderError(RefitError):
    """A step of a weight update came out of order, or something else while an update is open; nothing was done."""


class SleepError(QuirksError):
    """The engine cannot sleep or wake as requested."""
