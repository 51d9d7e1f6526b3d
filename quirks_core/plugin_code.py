"""Calls a plugin's code: its errors become rows, its output goes to standard error, and one that takes long is named."""

from __future__ import annotations

import importlib.metadata
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any, TypeVar

from quirks_core.errors import DeclarationError, words
from quirks_core.text import one_line

_T = TypeVar("_T")
#: Seconds after which a plugin's code is named on standard error while it runs, and later in ``quirks doctor``.
SLOW_S = 3.0
#: What every reader of versions and entry points goes through.
_METADATA: Mapping[str, Any] = {
    "importlib.metadata": importlib.metadata,
    "importlib.metadata.Distribution": importlib.metadata.Distribution,
    "importlib.metadata.MetadataPathFinder": importlib.metadata.MetadataPathFinder,
}


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
        with redirect_stdout(sys.stderr), _named_while_slow(who), _metadata_kept():
            return function(), time.monotonic() - start
    except (KeyboardInterrupt, DeclarationError):
        raise
    except BaseException as error:  # SystemExit, too: a plugin does not end the program
        raise DeclarationError(words(error)) from error


@contextmanager
def _metadata_kept() -> Iterator[None]:
    """Puts back what a plugin changes of the functions that read versions: everything after it would fail instead of it."""
    before = {place: dict(vars(owner)) for place, owner in _METADATA.items()}
    changed: list[str] = []
    try:
        yield
    finally:
        for place, own in before.items():
            for name in [name for name, value in own.items() if vars(_METADATA[place]).get(name) is not value]:
                setattr(_METADATA[place], name, own[name])
                changed.append(f"{place}.{name}")
    if changed:
        raise DeclarationError(f"it replaces {', '.join(changed)}, through which the versions of all packages are read")


@contextmanager
def _named_while_slow(who: str) -> Iterator[None]:
    text = f"{one_line(who)} has taken {SLOW_S:g} s so far"
    timer = threading.Timer(SLOW_S, lambda: print(text, file=sys.__stderr__, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
