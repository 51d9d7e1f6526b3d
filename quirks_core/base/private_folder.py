"""Temporary folders that show whether the process that made them still runs, so that the next run removes what was left.

Each holds a file on which its owner keeps a lock (``flock``). The system releases the lock when the owner ends, however it
ends, and no process id can be mistaken for another's, not even across containers that share a folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from quirks_core.base.errors import QuirksError

_LOCK = ".owner"

_held: dict[Path, int] = {}


def user_cache() -> Path:
    """Returns this project's folder in the user's cache; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "model-quirks"


def make(prefix: str, parent: str | Path | None = None) -> Path:
    """Makes a folder that no other user can enter, and marks it as this process's.

    Args:
        prefix: How its name begins; `remove_abandoned` looks for it.
        parent: Where; the system's folder for temporary files (TMPDIR) if None.

    Raises:
        QuirksError: It cannot be made there; the message says why.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        _hold(folder)
    except OSError as error:
        where = f" in {parent}" if parent is not None else ""
        raise QuirksError(f"cannot make a temporary folder{where}: {error}; free space there, or set TMPDIR") from error
    return folder


def is_private(folder: Path) -> bool:
    """Returns whether a folder is there, this user's, and closed to all others."""
    return folder.is_dir() and folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o077


def is_ours(folder: Path) -> bool:
    """Returns whether `make` made a folder for this user."""
    return is_private(folder) and not folder.is_symlink() and (folder / _LOCK).is_file()


def remove(folder: Path) -> None:
    """Removes a folder with all that is in it, and gives up its lock; one that is gone is no error."""
    shutil.rmtree(folder, ignore_errors=True)
    if (lock := _held.pop(folder, None)) is not None:
        os.close(lock)


@contextmanager
def temporary(prefix: str) -> Iterator[Path]:
    """Makes a folder as `make` does and removes it at the end."""
    folder = make(prefix)
    try:
        yield folder
    finally:
        remove(folder)


def remove_abandoned(prefixes: Sequence[str]) -> None:
    """Removes this user's temporary folders, by how their names begin, whose owner has ended."""
    for folder in Path(tempfile.gettempdir()).iterdir():
        if folder.name.startswith(tuple(prefixes)) and (lock := _abandoned_lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _hold(folder: Path) -> None:
    unlocked = folder / f"{_LOCK}.new"  # nobody looks for this name: the lock is held when the file gets its own
    lock = os.open(unlocked, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _held[folder] = lock
    except OSError:  # a file system without locks, on which no folder looks abandoned
        os.close(lock)
    unlocked.rename(folder / _LOCK)


def _abandoned_lock(folder: Path) -> int | None:
    """Takes the lock of a folder that its owner no longer holds; returns the open file."""
    with suppress(OSError):
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return None
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except OSError:
            os.close(lock)
    return None
