"""Calls a plugin's code: its errors become rows, its output goes to standard error, and one that takes long is named."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TypeVar

from quirks_core.errors import DeclarationError, words

_T = TypeVar("_T")
#: Seconds after which a plugin's code is named on standard error while it runs, and later in ``quirks doctor``.
SLOW_S = 3.0


def call(who: str, function: Callable[[], _T]) -> tuple[_T, float]:
    """Calls a plugin's code.

    Args:
        who: The plugin, for what is said on standard error.
        function: The code.

    Returns:
        What it returned, and the seconds that it took.

    Raises:
        DeclarationError: It raised an error or wanted to end the program; the message says so on one line.
    """
    start = time.monotonic()
    try:
        with redirect_stdout(sys.stderr), _named_while_slow(who):
            return function(), time.monotonic() - start
    except (KeyboardInterrupt, DeclarationError):
        raise
    except BaseException as error:  # SystemExit, too: a plugin does not end the program
        raise DeclarationError(words(error)) from error


@contextmanager
def _named_while_slow(who: str) -> Iterator[None]:
    timer = threading.Timer(SLOW_S, lambda: print(f"{who} has taken {SLOW_S:g} s so far", file=sys.__stderr__, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
