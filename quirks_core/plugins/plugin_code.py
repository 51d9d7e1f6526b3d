"""Calls a plugin's code: its errors become rows, its output goes to standard error, and one that takes long is named.

Code that never returns cannot be interrupted from outside: a thread beside it ends the process instead.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TypeVar

from quirks_core.base.errors import DeclarationError, UsageError, words
from quirks_core.base.text import one_line

_T = TypeVar("_T")
#: Seconds after which a plugin's code is named on standard error while it runs, and later in ``quirks doctor``.
SLOW_S = 3.0
#: Seconds after which a plugin's code that has not returned ends the process; 0 for no limit.
TIMEOUT_VARIABLE = "MODEL_QUIRKS_LOAD_TIMEOUT"
_TIMEOUT_S = 60.0
#: Seconds between two messages about the same code.
_REPEAT_S = 20.0
#: Exit code of a process that a plugin's code holds: that of a broken plugin.
_BROKEN = 3


def call(who: str, distribution: str, function: Callable[[], _T]) -> tuple[_T, float]:
    """Calls a plugin's code. If it does not return in MODEL_QUIRKS_LOAD_TIMEOUT seconds, the process ends with exit code 3.

    Args:
        who: The plugin, for messages on standard error.
        distribution: Its distribution, which the user can switch off.
        function: The code.

    Returns:
        What it returned, and the seconds that it took.

    Raises:
        DeclarationError: It raised an error or wanted to end the program; the message has it on one line.
        UsageError: MODEL_QUIRKS_LOAD_TIMEOUT is no number of seconds.
    """
    limit_s = _limit_s()
    start = time.monotonic()
    try:
        with redirect_stdout(sys.stderr), _watched(who, distribution, limit_s):
            return function(), time.monotonic() - start
    except (KeyboardInterrupt, DeclarationError):
        raise
    except BaseException as error:  # SystemExit, too: a plugin does not end the program
        raise DeclarationError(words(error)) from error


def _limit_s() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE) or str(_TIMEOUT_S)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise UsageError(f"{TIMEOUT_VARIABLE}={one_line(text)!r}: set it to a number of seconds, or to 0 for no limit")
    return seconds or math.inf


@contextmanager
def _watched(who: str, distribution: str, limit_s: float) -> Iterator[None]:
    returned = threading.Event()
    arguments = (returned, threading.get_ident(), one_line(who), one_line(distribution), limit_s)
    threading.Thread(target=_watch, args=arguments, name="model-quirks-plugin-watchdog", daemon=True).start()
    try:
        yield
    finally:
        returned.set()


def _watch(returned: threading.Event, thread: int, who: str, distribution: str, limit_s: float) -> None:
    """Names code that takes long, with its off switch, and ends the process at the limit."""
    spent, step, switch = 0.0, SLOW_S, f"MODEL_QUIRKS_DISABLE=distribution:{distribution} switches it off"
    while not returned.wait(step := min(step, limit_s - spent)):
        spent, step = spent + step, _REPEAT_S
        if spent < limit_s:
            end = "" if limit_s == math.inf else f"; at {limit_s:g} s this process ends"
            print(f"{who} has taken {spent:g} s so far: {switch}{end}", file=sys.__stderr__, flush=True)
            continue
        frame = sys._current_frames().get(thread)
        where = f" (at {one_line(frame.f_code.co_filename)}:{frame.f_lineno})" if frame is not None else ""
        text = f"{who} has not returned in {spent:g} s{where}, so this process ends: {switch}"
        print(f"{text}, {TIMEOUT_VARIABLE}=SECONDS sets the limit", file=sys.__stderr__, flush=True)
        os._exit(_BROKEN)
