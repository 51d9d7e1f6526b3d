"""Takes the Python files out of a wheel or a source archive."""

from __future__ import annotations

import tarfile
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


def unpack(archive: Path | IO[bytes], name: str, folder: Path) -> None:
    """Writes vLLM's Python files, and the metadata, from a wheel or source archive into a folder.

    Args:
        archive: Its path, or its content.
        name: What it is called; a ``.whl`` or ``.zip`` is read as such, everything else as a tar file.
        folder: Gets ``vllm/…``, and ``PKG-INFO`` or ``….dist-info/METADATA``. What is in it after an error is worth nothing.

    Raises:
        UnreadableReleaseError: It holds none, cannot be read, or is incomplete.
    """
    try:
        if name.endswith((".whl", ".zip")):
            with zipfile.ZipFile(archive) as opened:
                files = sorted(opened.infolist(), key=lambda item: item.header_offset)  # read once from front to back
                opened.extractall(folder, [item.filename for item in files if _is_wanted(item.filename)])  # noqa: S202
        else:
            with tarfile.open(archive) if isinstance(archive, Path) else tarfile.open(fileobj=archive) as packed:
                packed.extractall(folder, filter=_inner)  # noqa: S202 - `tarfile.data_filter` looks at each
    except Exception as error:  # of a format, of a compression, of a server: each has errors of its own
        raise UnreadableReleaseError(
            f"{name} is no complete wheel or source archive, and nothing of it is kept: {words(error)}"
        ) from None
    if not (folder / PACKAGE / "__init__.py").is_file():
        raise UnreadableReleaseError(f"{name} holds no Python source of {PACKAGE}; give another wheel, or a source tree")


def _inner(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """A file of a source archive, all of which is in one folder; None if it is not wanted."""
    name = member.name.partition("/")[2].removeprefix("src/")
    return tarfile.data_filter(member.replace(name=name), folder) if member.isfile() and _is_wanted(name) else None


def _is_wanted(name: str) -> bool:
    path = PurePosixPath(name)
    return (
        (path.suffix == ".py" and path.parts[0] == PACKAGE)
        or (path.name == "METADATA" and path.parent.suffix == ".dist-info")
        or path.parts == ("PKG-INFO",)
    )
