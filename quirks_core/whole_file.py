"""Files that a reader never sees half of."""

from __future__ import annotations

from pathlib import Path


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
