"""The version of vLLM that a file pins: requirements, a project file, a lock file."""

from __future__ import annotations

import re
from pathlib import Path

from quirks_core.base.errors import UsageError

_VERSION = r"[0-9][A-Za-z0-9_.]*"
_PIN = re.compile(
    rf"^(?:[^#\n]*[^#\w.\n-])?vllm(?:-cpu)?(?:\[[^]\n]*\])? *== *({_VERSION})"
    rf"|^name = \"vllm(?:-cpu)?\"\nversion = \"({_VERSION})",
    re.MULTILINE,
)


def pinned_version(file: Path) -> str:
    """Returns the version of vLLM that a file pins with ``==``, or that a lock file of uv or poetry holds; the first one.

    Raises:
        UsageError: The file cannot be read, or pins none.
    """
    try:
        found = _PIN.search(file.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    if found is None:
        raise UsageError(f"{file} pins no vLLM: there is no vllm==VERSION in it")
    return found[1] or found[2]
