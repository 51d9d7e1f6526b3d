"""Explains why an engine died, from the logs and processes that it left behind."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from quirks_core.errors import QuirksError
from worker import errors
from worker.errors import EngineDiedError, EngineStartError, WorkerCallError

#: How many error lines of each process go into our error when an engine dies.
_ERROR_LINES = 6
#: What Python writes around the frames of a traceback, which are indented.
_AROUND = ("Traceback (most recent call last)", "The above exception was", "During handling of the above")


def start_error(error: Exception, lines: list[str]) -> EngineStartError:
    """Puts the reason and the last error lines of each process together."""
    reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return EngineStartError("\n".join([f"the engine died while it started: {reason}", *(f"  {line}" for line in lines)]))


def death(started: Iterable[BaseProcess], folder: Path | None) -> EngineDiedError:
    """Says which process of a running engine ended, and how.

    Args:
        started: The engine's processes that this one started.
        folder: Where the processes log their errors; None if the engine is stopped already.
    """
    endings = [
        f"{process.name} (pid {process.pid}) {_ending(process.exitcode)}" for process in started if not process.is_alive()
    ]
    said = "; ".join(endings) or "one of its workers ended"
    lines = "".join(f"\n  {line}" for line in (last_errors(folder) if folder is not None else ()))
    return EngineDiedError(f"the engine died: {said}; call restart_async, or make a new worker{lines}")


def of_worker(answer: Mapping[str, Any]) -> QuirksError:
    """Makes the error again that a call raised in a worker: of the same kind, if it is one of ours."""
    kind: type[QuirksError] = getattr(errors, answer["kind"], WorkerCallError)
    return kind(answer["error"])


def last_errors(folder: Path) -> list[str]:
    """Returns the last lines that each process logged as errors, frames left out; the process that failed first comes first."""
    last: list[str] = []
    for file in sorted(folder.glob("errors-*.log"), key=lambda file: file.stat().st_mtime):
        text = file.read_text(encoding="utf-8", errors="replace")
        process = text.partition(": ")[0]
        said = [line.removeprefix(f"{process}: ") for line in text.splitlines()]
        lines = [line.strip() for line in said if line and not line[0].isspace() and not line.startswith(_AROUND)]
        last += [f"{process}: {line}" for line in lines[-_ERROR_LINES:]]
    return last


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
