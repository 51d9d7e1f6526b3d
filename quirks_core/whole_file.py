"""Files that are written as a whole, so that a reader never sees half of one, and read only up to a size."""

from __future__ import annotations

import errno
from pathlib import Path


def read(file: Path, most: int) -> str:
    """Returns a text.

    Args:
        file: The file, a pipe or a device.
        most: Bytes that it may have.

    Raises:
        OSError: It cannot be read, or has more bytes.
        UnicodeDecodeError: It is not in UTF-8.
    """
    with file.open("rb") as opened:  # a device may have no end
        data = opened.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most // 1_000_000} MB", str(file))
    return data.decode()


def write(file: Path, text: str) -> None:
    """Replaces a file by one with a text; a pipe or a device is written to instead.

    Raises:
        OSError: It cannot be written.
    """
    if file.exists() and not file.is_file():
        file.write_text(text, encoding="utf-8")
        return
    draft = file.with_name(f"{file.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)
