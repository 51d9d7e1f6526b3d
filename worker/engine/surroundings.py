"""What an engine needs: its temporary folder, space on disk, and a program that its processes can import."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

#: Seconds between two looks at the folder.
_LOOK_S = 1.0
#: Bytes that must be left for temporary files; an engine writes sockets, acknowledgements and logs, little of each.
_LEAST = 2**20


@contextmanager
def guarded(folder: Path, end: Callable[[], object]) -> Iterator[None]:
    """Ends an engine that starts when its folder vanishes: vLLM's processes would wait for the sockets in it for ever.

    Args:
        folder: The run's private folder.
        end: Called from a thread of its own, once a second, as soon as the folder is gone.
    """
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_S):
            if not folder.is_dir():
                end()

    thread = threading.Thread(target=look, name="model-quirks-folder-watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def cause(folder: Path) -> str | None:
    """Returns what is wrong with the run's temporary folder: enough to explain why an engine did not start.

    Args:
        folder: The run's private folder.
    """
    if not folder.is_dir():
        return (
            f"its temporary folder {folder} vanished meanwhile: something removes files there; keep it from folders named "
            f"{folder.name.rpartition('-')[0]}-*, or set TMPDIR to another folder"
        )
    return full_disk()


def unreadable_program() -> str | None:
    """Returns that spawned processes cannot import this program again; None if it is a file, or has none to import."""
    if (name := getattr(sys.modules["__main__"], "__file__", None)) != "<stdin>":
        return None
    return f"its processes import the program again, and {name} is no file: save the program in one"


def full_disk() -> str | None:
    """Returns that there is no space for temporary files; None if there is some."""
    try:
        places = {tempfile.gettempdir(), os.environ.get("TMPDIR", "")}  # Python passes over one that is full, and others do not
    except FileNotFoundError as error:
        return f"{error.strerror}: free space in one of them, or set TMPDIR"
    for place in sorted(filter(os.path.isdir, places)):
        if (free := shutil.disk_usage(place).free) < _LEAST:
            return (
                f"the disk of {place}, the folder for temporary files, is full ({free} bytes left); free space, or set TMPDIR"
            )
    return None
