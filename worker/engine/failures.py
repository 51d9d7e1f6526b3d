"""Explains why an engine died: from the logs and processes that it left behind."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from traceback import format_exception
from typing import Any

from quirks_core.base.errors import QuirksError, shortened
from quirks_core.configuration.slots import slot_named
from quirks_core.plan.records import Plan, Status
from worker import errors
from worker.errors import EngineDiedError, EngineStartError, WorkerCallError

#: How many error lines of each process go into our error when an engine dies.
_ERROR_LINES = 6
#: How many lines of an error of the driver's go into ours, and how long each may be.
_REASON_LINES, _LONGEST_LINE = 12, 500
#: In a line of vLLM's that names every setting, whatever went wrong.
_DUMP = " with config: "
#: A frame of a traceback: file and function.
_FRAME = re.compile(r'File "([^"]+)", line \d+, in (\S+)')
#: What Python writes around the frames of a traceback, which are indented.
_AROUND = ("Traceback (most recent call last)", "The above exception was", "During handling of the above")


def start_error(error: Exception, lines: list[str]) -> EngineStartError:
    """Puts the lines of the driver's error and the last error lines of each process together."""
    found = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    reasons = [shortened(line, _LONGEST_LINE) for line in found[:_REASON_LINES]]
    return EngineStartError("\n  ".join([f"the engine died while it started: {reasons[0]}", *reasons[1:], *lines]))


def notes(error: Exception, plan: Plan, running: str) -> list[str]:
    """Returns which quirks can have to do with an error: those that set what it names, and those whose code was running.

    What was running is in the `tracebacks` that belong to the error.
    """
    lines = (line for line in str(error).splitlines() if _DUMP not in line)
    message = re.sub(r"(?<=\w)-(?=\w)", "_", "\n".join(lines))  # an argument, or its option
    titles = {verdict.id: verdict.title for verdict in plan.active}
    found = [
        f"quirk {name} ({titles.get(name, '')}) {did}; to run without it: --disable {name}"
        for name, did in dict.fromkeys([*_set(plan, message), *_patched(plan, running)])
    ]
    if found:
        return found
    more = f" ({len(titles)} are active: 'quirks plan' shows them, 'quirks bisect' runs without them)" if titles else ""
    return [f"no quirk changed anything that this error names{more}"]


def _set(plan: Plan, message: str) -> Iterator[tuple[str, str]]:
    for item in plan.adjustments:
        if item.status is Status.APPLIED and any(
            re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message) for name in _names(item.slot)
        ):
            yield from ((quirk.id, f"set {item.wanted}, which the error names") for quirk in item.quirks)


def _patched(plan: Plan, running: str) -> Iterator[tuple[str, str]]:
    """Yields the patches whose code failed, or called what failed; one that called what it wraps is not among them."""
    stacks = [_FRAME.findall(text) for text in running.split(_AROUND[0])]
    for patch in plan.patches:
        own, wrapped, name = _files(patch.source), _files(patch.target), _function(patch.target)
        beside = [other for other in plan.patches if other.source != patch.source and _files(other.source) == own]
        others = {_function(place) for other in beside for place in (other.source, other.target)} - {name}
        if any(
            file.endswith(own)
            and function not in others
            and not any(called == name and place.endswith(wrapped) for place, called in stack[number + 1 :])
            for stack in stacks
            for number, (file, function) in enumerate(stack)
        ):
            yield patch.quirk.id, f"patches {patch.target}, and its code was running"


def _function(place: str) -> str:
    """The last name of ``module:name``; a wrapper's own function has that of what it wraps."""
    return place.rpartition(":")[2].rpartition(".")[2]


def _files(source: str) -> tuple[str, str]:
    """How the path of the file can end that holds ``module:name``."""
    path = "/" + source.partition(":")[0].replace(".", "/")
    return f"{path}.py", f"{path}/__init__.py"


def _names(slot: str) -> Iterator[str]:
    """The names by which an error can speak of a slot; a plain word such as ``placement`` may mean anything."""
    yield slot
    if slot_named(slot).is_enforced or "_" in slot_named(slot).key:
        yield slot_named(slot).key


def death(started: Iterable[BaseProcess], folder: Path) -> EngineDiedError:
    """Returns which of the processes that a running engine started ended, and how; the folder has their errors."""
    endings = [
        f"{process.name} (pid {process.pid}) {_ending(process.exitcode)}" for process in started if not process.is_alive()
    ]
    cause = "; ".join(endings) or "one of its workers ended"
    lines = "".join(f"\n  {line}" for line in last_errors(folder))
    return EngineDiedError(f"the engine died: {cause}; {EngineDiedError.REMEDY}{lines}")


def of_worker(answer: Mapping[str, Any]) -> QuirksError:
    """Makes the error again that a call raised in a worker: of the same kind, if it is one of ours."""
    kind: type[QuirksError] = getattr(errors, answer["kind"], WorkerCallError)
    return kind(answer["error"])


def tracebacks(folder: Path, error: BaseException | None = None) -> str:
    """Returns everything that the processes logged as errors, and the traceback of an error of this one."""
    logged = [file.read_text(encoding="utf-8", errors="replace") for file in sorted(folder.glob("errors-*.log"))]
    return "".join([*logged, *(format_exception(error) if error else ())])


def last_errors(folder: Path) -> list[str]:
    """Returns the last lines that each process logged as errors, frames left out; the process that failed first comes first."""
    last: list[str] = []
    for file in sorted(folder.glob("errors-*.log"), key=lambda file: file.stat().st_mtime):
        text = file.read_text(encoding="utf-8", errors="replace")
        process = text.partition(": ")[0]
        unprefixed = [line.removeprefix(f"{process}: ") for line in text.splitlines()]
        lines = [line.strip() for line in unprefixed if line and not line[0].isspace() and not line.startswith(_AROUND)]
        last += [f"{process}: {line}" for line in lines[-_ERROR_LINES:]]
    return last


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"
