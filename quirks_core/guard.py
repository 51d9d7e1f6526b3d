"""Calls a plugin's code with a time limit."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from quirks_core.errors import QuirksError, UsageError, shortened, words

_T = TypeVar("_T")

#: Seconds that loading one plugin, or one of its hooks, may take.
LIMIT_VARIABLE = "MODEL_QUIRKS_TIME_LIMIT_S"
_DEFAULT_LIMIT_S = 10.0


class TimeLimitError(QuirksError):
    """A plugin's code did not return in time."""


class ExitError(QuirksError):
    """A plugin's code wanted to end the program."""


def time_limit_s() -> float:
    """Returns the limit in seconds.

    Raises:
        UsageError: The environment variable is no positive number.
    """
    text = os.environ.get(LIMIT_VARIABLE, "")
    try:
        limit = float(text) if text else _DEFAULT_LIMIT_S
    except ValueError:
        limit = 0.0
    if not 0 < limit <= threading.TIMEOUT_MAX:
        raise UsageError(f"{LIMIT_VARIABLE}={text!r} is not a positive number of seconds")
    return limit


@dataclass(slots=True)
class _Batch(Generic[_T]):
    """Functions that one thread calls, one after the other."""

    functions: Sequence[Callable[[], _T]]
    outcomes: list[_T | Exception] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)  # when the present function was called
    given_up: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Calls them; stops if nobody waits any more."""
        for function in self.functions:
            outcome = _outcome(function)
            with self.lock:
                if self.given_up:
                    return
                self.outcomes.append(outcome)
                self.started = time.monotonic()
        self.done.set()

    def wait(self, limit_s: float) -> list[_T | Exception]:
        """Waits until all are done, or one takes longer than the limit; its place then holds the error."""
        while not self.done.wait(max(0.0, self.started + limit_s - time.monotonic())):
            with self.lock:
                if not self.done.is_set() and time.monotonic() - self.started >= limit_s:
                    self.given_up = True
                    return [*self.outcomes, TimeLimitError(_too_long(limit_s))]
        return self.outcomes


def call_each(functions: Sequence[Callable[[], _T]], limit_s: float) -> list[_T | Exception]:
    """Calls functions one after the other in one thread, which is cheaper than a thread for each; a limit holds for each.

    Python cannot end a thread: one that hangs goes on in the background, and ends with the process.

    Returns:
        What each returned, or the error that it raised, `TimeLimitError` among them.
    """
    outcomes: list[_T | Exception] = []
    while len(outcomes) < len(functions):
        batch = _Batch(functions[len(outcomes) :])
        threading.Thread(target=batch.run, name="model-quirks plugin", daemon=True).start()
        outcomes += batch.wait(limit_s)
    return outcomes


def call(function: Callable[[], _T], limit_s: float) -> _T:
    """Calls a function and gives it up after the limit.

    Raises:
        TimeLimitError: It did not return in time.
        ExitError: It raised something that is no `Exception`.
        Exception: Whatever else it raised.
    """
    (outcome,) = call_each([function], limit_s)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _outcome(function: Callable[[], _T]) -> _T | Exception:
    try:
        return function()
    except Exception as error:
        return error
    except BaseException as error:  # a real Ctrl-C comes to the main thread, so this one is the plugin's
        return ExitError(words(error))


def _too_long(limit_s: float) -> str:
    return f"did not return within {limit_s:g} s ({LIMIT_VARIABLE} raises the limit)"


@contextmanager
def surroundings(who: str) -> Iterator[list[str]]:
    """Keeps the environment and the working directory as they are, and standard output free of what plugins print.

    Args:
        who: The plugin whose code is called, for the notes.

    Yields:
        A list that holds, afterwards, what the plugin changed and we changed back, in words.
    """
    notes: list[str] = []
    before, folder = dict(os.environ), _working_directory()
    ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "quirks_core"}
    try:
        with redirect_stdout(sys.stderr):
            yield notes
    finally:
        if changed := sorted(name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)):
            os.environ.clear()
            os.environ.update(before)
            notes.append(f"{who} changed environment variables, which was undone: {shortened(', '.join(changed))}")
        if any(sys.modules.get(name) is not module for name, module in ours.items()):
            sys.modules.update(ours)
            notes.append(f"{who} changed our entries in sys.modules, which was undone")
        if folder is not None and _working_directory() != folder:
            os.chdir(folder)
            notes.append(f"{who} changed the working directory, which was undone")


def _working_directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109  # as text, to compare
    except OSError:
        return None
