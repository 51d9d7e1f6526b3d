"""Files that are written so that a reader never sees half of one."""

from __future__ import annotations

import tempfile
from pathlib import Path


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
