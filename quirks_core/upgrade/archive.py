"""Takes the Python files out of a wheel."""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath
from typing import IO

from quirks_core.base.errors import UsageError, words

PACKAGE = "vllm"


class UnreadableReleaseError(UsageError):
    """A release that cannot be fetched or read."""

    exit_code = 5


class IndexUnreachableError(UnreadableReleaseError):
    """No index answers, so that versions cannot be named."""


def unpack(wheel: Path | IO[bytes], name: str, folder: Path) -> None:
    """Writes vLLM's Python files, and the metadata, from a wheel into a folder: ``vllm/…`` and ``….dist-info/METADATA``.

    What is in it after an error is worth nothing.

    Raises:
        UnreadableReleaseError: It holds none, cannot be read, or is incomplete.
    """
    try:
        with zipfile.ZipFile(wheel) as opened:
            files = sorted(opened.infolist(), key=lambda item: item.header_offset)  # read once from front to back
            opened.extractall(folder, [item.filename for item in files if _is_wanted(item.filename)])
    except Exception as error:  # of a format, of a compression, of a server: each has errors of its own
        raise UnreadableReleaseError(f"{name} is no complete wheel, and nothing of it is kept: {words(error)}") from None
    if not (folder / PACKAGE / "__init__.py").is_file():
        raise UnreadableReleaseError(f"{name} holds no Python source of {PACKAGE}; give another wheel, or a source tree")


def _is_wanted(name: str) -> bool:
    path = PurePosixPath(name)
    is_source = path.suffix == ".py" and path.parts[0] == PACKAGE
    return is_source or (path.name == "METADATA" and path.parent.suffix == ".dist-info")
