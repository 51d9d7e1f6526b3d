"""The package index that pip is configured with: which files of a distribution it has, and what they hold.

``unearth`` reads indexes and folders; the extra ``upgrade`` installs it. Settings are those of ``pip config list``.
"""

from __future__ import annotations

import ast
import io
import logging
import os
import ssl
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.version import Version
from unearth import Link, PackageFinder
from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import PyPIClient
from unearth.preparer import download_link

from quirks_core.base import child_process
from quirks_core.base.errors import words
from quirks_core.upgrade.archive import IndexUnreachableError, UnreadableReleaseError, unpack

#: The sections of pip's configuration, the weaker ones first.
_SECTIONS = ("global", "download", "install", ":env:")
_KEYS = ("index-url", "extra-index-url", "find-links", "no-index", "cert", "proxy", "trusted-host")
_TRUE = ("1", "true", "yes", "on")
_PIP_LIMIT_S = 30.0
#: The answers of an index that does not have a distribution.
_NOT_FOUND = (404, 410)
#: Bytes of a wheel that are fetched at a time. vLLM's Python files lie beside each other, and make some 15 requests.
_BLOCK = 1 << 20

logging.getLogger("unearth").setLevel(logging.ERROR)  # it warns of every index that lacks a distribution


class _Client(PyPIClient):
    """Raises an error for an index that refuses; unearth takes it for an empty one."""

    def get(self, *args: Any, **kwargs: Any) -> Any:
        answer = super().get(*args, **kwargs)
        if answer.status_code not in _NOT_FOUND:
            answer.raise_for_status()
        return answer


@dataclass(frozen=True)
class PackageIndex:
    """The indexes and folders that pip looks in.

    Attributes:
        urls: Base addresses of the simple repository API.
        links: Folders and pages with files.
        limit_s: Seconds in which a server must answer.
        settings: Those of pip: ``cert``, ``proxy`` and ``trusted-host``.
    """

    urls: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    limit_s: float = 60.0
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_pip(cls) -> PackageIndex:
        """Reads pip's configuration."""
        found = _settings()
        first = found.get("index-url") or PackageFinder().sources[0]["url"]
        urls = () if found.get("no-index", "").lower() in _TRUE else (first, *found.get("extra-index-url", "").split())
        return cls(urls, tuple(found.get("find-links", "").split()), settings=found)

    def files(self, distribution: str) -> dict[Version, Link]:
        """Returns a file of each version of a distribution: the best wheel for this machine.

        Raises:
            IndexUnreachableError: An index or a folder does not answer, or pip has none.
        """
        why = "pip has none configured"
        if places := (*self.urls, *self.links):
            finder = PackageFinder(
                self._session, index_urls=self.urls, find_links=self.links, ignore_compatibility=True,
                prefer_binary=[distribution],
            )  # fmt: skip
            try:
                found = [*finder.find_all_packages(distribution, allow_yanked=True)]
                return {Version(one.version or "0"): one.link for one in reversed(found)}
            except Exception as error:  # whatever a server answers
                names = ", ".join(urlsplit(place).hostname or place for place in places)
                why = f"of {names} one does not answer ({words(error)})"
        raise IndexUnreachableError(
            f"no index tells of {distribution}: {why}; give a wheel or a source tree by its path instead (--to PATH)"
        )

    def fetch(self, link: Link, folder: Path, *, notify: Callable[[str], None]) -> None:
        """Writes vLLM's Python files from a file of an index into a folder, as `unpack` does.

        If the server takes ranges, only they are fetched from a wheel, each with its checksum. Else the whole file is, and is
        compared with the digest that the index gives.

        Raises:
            UnreadableReleaseError: It cannot be fetched or read, or is not what the index lists; nothing of it counts.
        """
        try:
            if link.is_wheel and not link.is_file and (wheel := _Ranges.open(self._session, link.url_without_fragment)):
                notify(f"fetching the Python files of {link.filename}, which has {wheel.size >> 20} MiB")
                return unpack(io.BufferedReader(wheel, _BLOCK), link.filename, folder)
            with tempfile.TemporaryDirectory(dir=folder.parent) as whole:
                notify(f"fetching {link.filename} as a whole")
                return unpack(download_link(self._session, link, Path(whole), link.hash_option), link.filename, folder)
        except UnreadableReleaseError:
            raise
        except Exception as error:
            message = f"{link.filename} cannot be fetched, and nothing of it is kept: {words(error)}"
            raise UnreadableReleaseError(message) from None

    @cached_property
    def _session(self) -> Any:
        return _Client(
            trusted_hosts=self.settings.get("trusted-host", "").split(),
            verify=ssl.create_default_context(cafile=self.settings.get("cert") or None),
            proxy=self.settings.get("proxy") or None,
            timeout=self.limit_s,
            follow_redirects=True,
            auth=MultiDomainBasicAuth(prompting=False, index_urls=self.urls),
        )


class _Ranges(io.RawIOBase):
    """A file on a server, of which parts are fetched; a buffered reader around it makes them large."""

    def __init__(self, session: Any, url: str, size: int) -> None:
        self.session, self.url, self.size, self.at = session, url, size, 0

    @classmethod
    def open(cls, session: Any, url: str) -> _Ranges | None:
        """Returns the file; None if the server gives whole files only."""
        with session.stream("GET", url, headers={"Range": "bytes=0-0"}) as answer:
            answer.raise_for_status()
            size = answer.headers.get("Content-Range", "").rpartition("/")[2]
            return cls(session, url, int(size)) if answer.status_code == 206 and size.isdigit() else None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # the typeshed's Buffer has no length
        last = min(self.at + len(buffer), self.size) - 1
        if last < self.at:
            return 0
        answer = self.session.get(self.url, headers={"Range": f"bytes={self.at}-{last}"})
        data: bytes = answer.content
        if answer.status_code != 206 or len(data) != last - self.at + 1:
            raise OSError(f"the server gave {len(data)} bytes instead of {last - self.at + 1}")
        buffer[: len(data)] = data
        self.at += len(data)
        return len(data)


def _settings() -> dict[str, str]:
    """The configuration of pip by key; what the environment says of it where pip is not there."""
    lines: list[str] = []
    code = child_process.run(
        [sys.executable, "-m", "pip", "config", "list"], output=lines.append, limit_s=_PIP_LIMIT_S,
    )  # fmt: skip
    if code != 0:
        given = ((name[4:].lower().replace("_", "-"), value) for name, value in os.environ.items() if name.startswith("PIP_"))
        lines = [f":env:.{key}={value!r}" for key, value in given if value]
    found: dict[str, str] = {}
    for section in _SECTIONS:
        for line in lines:
            name, _, value = line.partition("=")
            where, _, key = name.partition(".")
            if where == section and key in _KEYS:
                found[key] = str(ast.literal_eval(value))
    return found
