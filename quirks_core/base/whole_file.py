"""Files that users name: read up to a limit, and written so that a reader never sees half of one."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

#: Most bytes of a file that is read, if the caller names no other limit.
MOST = 16 * 2**20
_KINDS = {
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


def kind(file: Path) -> str | None:
    """Returns what is at a path, in words; None for a regular file, or if nothing is there.

    Raises:
        OSError: It cannot be looked at.
    """
    try:
        return _KINDS.get(stat.S_IFMT(file.stat().st_mode))
    except FileNotFoundError:
        return None


def read(file: Path, most: int = MOST) -> bytes:
    """Reads a file. What a shell puts in a file's place, ``/dev/stdin`` or ``<(command)``, is read, too.

    Args:
        file: The file.
        most: Most bytes to read.

    Raises:
        OSError: It cannot be read, has more bytes (an endless device, perhaps), or is a FIFO that nothing writes to.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)  # else opening a FIFO waits for a writer
    with os.fdopen(descriptor, "rb") as opened:
        os.set_blocking(descriptor, True)
        data = opened.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most // 2**20} MiB; name the right file")
    if not data and (what := kind(file)) is not None:
        raise OSError(errno.ENODATA, f"it is {what}, and nothing comes from it; name a regular file")
    return data


def write(file: Path, text: str) -> None:
    """Replaces a file by one with a text; a pipe or a device is written to instead.

    Raises:
        OSError: It cannot be written.
    """
    if file.exists() and not file.is_file():
        file.write_text(text, encoding="utf-8")
        return
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as folder:
        draft = Path(folder, file.name)
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
