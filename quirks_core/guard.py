"""Calls a plugin's code with a time limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from quirks_core.errors import QuirksError, UsageError, words

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


def call(function: Callable[[], _T], limit_s: float) -> _T:
    """Calls a function and gives it up after the limit.

    Python cannot end a thread: one that hangs goes on in the background, and ends with the process.

    Raises:
        TimeLimitError: It did not return in time.
        ExitError: It raised something that is no `Exception`.
        Exception: Whatever else it raised.
    """
    outcome: list[_T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="model-quirks plugin", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise TimeLimitError(f"did not return within {limit_s:g} s ({LIMIT_VARIABLE} raises the limit)")
    if failure and not isinstance(failure[0], Exception):
        raise ExitError(words(failure[0])) from failure[0]
    if failure:
        raise failure[0]
    return outcome[0]
