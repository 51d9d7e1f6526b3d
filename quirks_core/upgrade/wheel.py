"""Takes the Python files out of a wheel or a source archive, which may be on a server: then only these files are fetched."""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path, PurePosixPath

from quirks_core.base.errors import UsageError, words
from quirks_core.upgrade.index import IndexFile, PackageIndex, copied

#: Bytes at the end of a wheel that are fetched first; the list of its files is among them.
_TAIL = 1 << 20
#: Unwanted bytes that are fetched rather than making two requests.
_GAP = 1 << 18
#: Bytes before a file's content besides its name, at most.
_HEADER = 512
_CONNECTIONS = 4
#: Bytes of Python in a release, at most: vLLM has 60 MiB. More is no release, but a file made to fill memory or disk.
_MOST = 512 << 20
_BROKEN = (
    OSError,
    EOFError,
    HTTPException,
    zipfile.BadZipFile,
    zlib.error,
    tarfile.TarError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    lzma.LZMAError,
    MemoryError,
)


class UnreadableReleaseError(UsageError):
    """A release that cannot be read."""

    exit_code = 5


class NoSourcesError(UnreadableReleaseError):
    """An archive that holds no Python files of the package."""


def unpack(archive: Path, package: str, folder: Path) -> None:
    """Writes the Python files of a package, and the metadata, from a local wheel or source archive into a folder.

    Args:
        archive: The wheel, ``.tar.gz`` or ``.zip``.
        package: The package's top-level name.
        folder: Gets ``PACKAGE/…`` and ``METADATA``.

    Raises:
        NoSourcesError: It holds none.
        UsageError: It cannot be read, or is incomplete.
    """
    try:
        if archive.suffix in (".whl", ".zip"):
            with zipfile.ZipFile(archive) as opened:
                _write_zip(opened, package, folder)
        else:
            with tarfile.open(archive) as packed:
                _write_tar(packed, package, folder)
    except _BROKEN as error:
        raise UnreadableReleaseError(f"{archive} is no complete wheel or source archive: {words(error)}") from None
    _check(folder, package, str(archive))


def fetch(index: PackageIndex, file: IndexFile, package: str, folder: Path, *, notify: Callable[[str], None]) -> None:
    """Writes the Python files of a package from a file of an index into a folder, as `unpack` does.

    If the server takes ranges, only they are fetched from a wheel; each is held against its checksum in it. Else the whole
    file is, and is held against the digest that the index gives.

    Args:
        index: The index.
        file: The file.
        package: The package's top-level name.
        folder: Gets the files. What is in it after an error is worth nothing.
        notify: Called with what is done.

    Raises:
        NoSourcesError: It holds none.
        UsageError: It cannot be read, or is not what the index lists.
    """
    try:
        if not (file.is_wheel and _fetch_ranges(index, file, package, folder, notify)):
            _fetch_whole(index, file, package, folder, notify)
    except _BROKEN as error:
        raise UnreadableReleaseError(f"{file.filename} cannot be fetched, and nothing of it is kept: {words(error)}") from None
    _check(folder, package, file.filename)


# ---- whole files


def _fetch_whole(index: PackageIndex, file: IndexFile, package: str, folder: Path, notify: Callable[[str], None]) -> None:
    notify(f"fetching {file.filename} as a whole")
    archive = folder / file.filename
    with index.open(file.url) as answer, archive.open("wb") as target:
        size, wanted = copied(answer, target), answer.headers.get("Content-Length")
    if wanted is not None and size != int(wanted):
        raise ValueError(f"{size} bytes of {wanted} came")
    with archive.open("rb") as source:
        if file.sha256 and hashlib.file_digest(source, "sha256").hexdigest() != file.sha256:
            raise ValueError("its SHA-256 is not the one that the index gives")
    unpack(archive, package, folder)
    archive.unlink()


# ---- ranges


class _Ranges(io.RawIOBase):
    """A file on a server, of which parts are fetched."""

    def __init__(self, read: Callable[[int, int], bytes], size: int, tail: bytes) -> None:
        self._read, self._size, self._at = read, size, 0
        self._parts = [(size - len(tail), tail)]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # the typeshed's Buffer has no length
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        part = next((one for one in self._parts if one[0] <= self._at < one[0] + len(one[1])), None)
        if part is None:
            part = self._at, self._read(self._at, self._at + wanted - 1)
            self._parts.append(part)
        data = part[1][self._at - part[0] :][:wanted]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def fetch(self, spans: Sequence[tuple[int, int]]) -> None:
        """Fetches spans of bytes, several at a time."""
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            found = pool.map(lambda span: (span[0], self._read(*span)), spans)
            self._parts += list(found)


def _fetch_ranges(index: PackageIndex, file: IndexFile, package: str, folder: Path, notify: Callable[[str], None]) -> bool:
    """Fetches the parts of a wheel that hold Python; False if the server gives whole files only."""
    with index.open(file.url, first=-_TAIL) as answer:
        if getattr(answer, "status", None) != 206:
            return False
        tail, size = answer.read(), int(answer.headers["Content-Range"].rpartition("/")[2])

    def read(first: int, last: int) -> bytes:
        with index.open(file.url, first=first, last=last) as answer:
            data: bytes = answer.read()
        if answer.status != 206 or len(data) != last - first + 1:
            raise ValueError(f"the server gave {len(data)} bytes instead of {last - first + 1}")
        return data

    source = _Ranges(read, size, tail)
    with zipfile.ZipFile(source) as archive:
        spans = list(_spans(_wanted(archive.infolist(), package), size))
        amount = sum(last - first for first, last in spans) >> 20
        notify(f"fetching the Python files of {file.filename}: {amount} of {size >> 20} MiB")
        source.fetch(spans)
        _write_zip(archive, package, folder)
    return True


def _spans(files: Iterable[zipfile.ZipInfo], size: int) -> Iterator[tuple[int, int]]:
    """The bytes that files lie in, neighbours together."""
    first, last = -1, -1
    for item in sorted(files, key=lambda item: item.header_offset):
        end = min(size - 1, item.header_offset + item.compress_size + len(item.filename.encode()) + _HEADER)
        if first < 0 or item.header_offset > last + _GAP:
            if first >= 0:
                yield first, last
            first = item.header_offset
        last = max(last, end)
    if first >= 0:
        yield first, last


# ---- archives


def _wanted(files: Iterable[zipfile.ZipInfo], package: str) -> list[zipfile.ZipInfo]:
    found = [item for item in files if _place(item.filename, package) is not None]
    _check_size(sum(item.file_size for item in found))
    return found


def _check_size(size: int) -> None:
    if size > _MOST:
        raise ValueError(f"it has more than {_MOST >> 20} MiB of Python, which no release has")


def _write_zip(archive: zipfile.ZipFile, package: str, folder: Path) -> None:
    for item in _wanted(archive.infolist(), package):
        if (place := _place(item.filename, package)) is not None:
            _write(folder / place, archive.read(item))


def _write_tar(archive: tarfile.TarFile, package: str, folder: Path) -> None:
    size = 0
    for item in archive:
        inner = item.name.partition("/")[2]  # a source archive has one folder
        place = _place(inner.removeprefix("src/"), package)
        size += item.size if place is not None else 0
        _check_size(size)
        if place is not None and item.isfile() and (source := archive.extractfile(item)) is not None:
            _write(folder / place, source.read())


def _place(name: str, package: str) -> PurePosixPath | None:
    """Where a file goes; None if it is not wanted, or its name leads elsewhere."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts:
        return None
    if path.name == "METADATA" and len(path.parts) == 2 and path.parts[0].endswith(".dist-info"):
        return PurePosixPath("METADATA")
    if path.parts == ("PKG-INFO",):
        return PurePosixPath("METADATA")
    return path if path.parts[0] == package and path.suffix == ".py" else None


def _write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def _check(folder: Path, package: str, name: str) -> None:
    if not (folder / package / "__init__.py").is_file():
        raise NoSourcesError(f"{name} holds no Python source of {package}; give another wheel, or a source tree")
