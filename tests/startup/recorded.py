"""Files of texts that tests compare with, in named sections. ``make records`` writes them again; read their diff."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_NAME = re.compile(r"^\[(.+)\]\n", re.MULTILINE)


def recorded(file: Path, now: Mapping[str, str]) -> dict[str, str]:
    """Returns the sections of a file. Where texts are to be recorded, those of `now` take their place in the file first."""
    parts = _NAME.split(file.read_text(encoding="utf-8"))[1:] if file.exists() else []
    sections = {name: text.rstrip("\n") for name, text in zip(parts[::2], parts[1::2], strict=True)}
    if os.environ.get("RECORD"):
        sections |= now
        file.write_text("\n".join(f"[{name}]\n{text}\n" for name, text in sections.items()), encoding="utf-8")
    return sections
