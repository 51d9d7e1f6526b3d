"""The package index that pip is configured with: which files of a distribution it has, and what they hold.

Settings come from ``pip config list`` (index-url, extra-index-url, find-links, no-index, cert, proxy), the files from the
simple repository API, as JSON or HTML, and from folders. Where pip is not there, its variables (``PIP_INDEX_URL``) count.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import shutil
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, canonicalize_name, parse_sdist_filename
from packaging.utils import parse_wheel_filename as parse_wheel
from packaging.version import Version

from quirks_core.base import child_process
from quirks_core.base.errors import UsageError, words

#: How pip's own help names the index that it takes where none is configured.
_DEFAULT = re.compile(r"Python Package Index \(default (\S+)\)")
_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPT = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_PIP_LIMIT_S = 30.0
#: The sections of pip's configuration, the weaker ones first.
_SECTIONS = ("global", "download", "install", ":env:")
_KEYS = ("index-url", "extra-index-url", "find-links", "no-index", "cert", "proxy")
_TRUE = ("1", "true", "yes", "on")
_NOT_FOUND = (404, 410)
_UNREADABLE = (OSError, HTTPException, KeyError, TypeError, ValueError, RecursionError)
_INSTEAD = "give a wheel or a source tree by its path instead (--to PATH)"


class IndexUnreachableError(UsageError):
    """No index answers, so that versions cannot be named."""

    exit_code = 5


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file of a distribution.

    Attributes:
        filename: Its name.
        url: Where it is.
        version: The version of the distribution.
        is_wheel: It is a wheel, not a source archive.
        sha256: Its digest; empty if the index does not give it.
        yanked: It was withdrawn.
    """

    filename: str
    url: str
    version: Version
    is_wheel: bool
    sha256: str = ""
    yanked: bool = False


@dataclass(frozen=True)
class PackageIndex:
    """The indexes and folders that pip looks in.

    Attributes:
        urls: Base addresses of the simple repository API.
        links: Folders and pages with files.
        cert: File with certificates; the system's if empty.
        proxy: Address of a proxy; that of the environment if empty.
        limit_s: Seconds in which a server must answer.
    """

    urls: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    cert: str = ""
    proxy: str = ""
    limit_s: float = 60.0
    _silent: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of_pip(cls, environ: Mapping[str, str] | None = None) -> PackageIndex:
        """Reads pip's configuration.

        Args:
            environ: The environment where pip is not there; `os.environ` if None.
        """
        found = _settings(os.environ if environ is None else environ)
        first = found.get("index-url") or _pips_default()
        urls = () if found.get("no-index", "").lower() in _TRUE else (*first.split(), *found.get("extra-index-url", "").split())
        return cls(urls, tuple(found.get("find-links", "").split()), found.get("cert", ""), found.get("proxy", ""))

    def files(self, distribution: str) -> list[IndexFile]:
        """Returns every file of a distribution, oldest version first.

        Raises:
            IndexUnreachableError: No index and no folder answers.
        """
        found: dict[str, IndexFile] = {}
        answers = 0
        for place in (*(f"{url.rstrip('/')}/{canonicalize_name(distribution)}/" for url in self.urls), *self.links):
            try:
                rows = list(_folder(place) if _is_folder(place) else self._page(place))
            except _UNREADABLE as error:
                self._silent[_host(place)] = _reason(error)
                continue
            answers += 1
            for item in _files(rows, distribution):
                found.setdefault(item.filename, item)
        if not found and (self._silent or not answers):
            raise IndexUnreachableError(
                f"no index tells of {distribution}: {self.trouble or 'pip has none configured'}; {_INSTEAD}"
            )
        return sorted(found.values(), key=lambda item: (item.version, item.filename))

    @property
    def trouble(self) -> str:
        """The indexes that did not answer, and why; empty if all did."""
        return "; ".join(f"{host} does not answer ({why})" for host, why in sorted(self._silent.items()))

    def open(
        self, url: str, *, first: int | None = None, last: int | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Opens a file of the index.

        Args:
            url: Where it is.
            first: The first byte to request; the last ones, if negative. The whole file if None.
            last: The last byte to request.
            headers: Further headers of the request.

        Returns:
            The response of `urllib.request`; its ``status`` is 206 where the server takes ranges, else 200.

        Raises:
            OSError: It cannot be read.
        """
        address, authorization = _without_user(url)
        if urlsplit(address).scheme not in ("file", "http", "https"):
            raise ValueError(f"{urlsplit(address).scheme or 'no scheme'}: not an address that can be read")
        request = urllib.request.Request(address, headers=dict(headers or {}))  # noqa: S310 - see above
        if authorization:
            request.add_unredirected_header("Authorization", authorization)  # another host must not get it
        if first is not None:
            request.add_header("Range", f"bytes={first}" if first < 0 else f"bytes={first}-{'' if last is None else last}")
        return self._opener.open(request, timeout=self.limit_s)

    @cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context(cafile=self.cert or None)
        handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
        if self.proxy:
            handlers.append(urllib.request.ProxyHandler({"http": self.proxy, "https": self.proxy}))
        return urllib.request.build_opener(*handlers)

    def _page(self, url: str) -> Iterator[tuple[str, str, str, bool]]:
        """Name, address, digest and whether it is yanked of each file of a page; nothing if there is no such page."""
        if urlsplit(url).scheme == "file" and _is_folder(url):
            index = Path(unquote(urlsplit(url).path)) / "index.html"
            if not index.is_file():
                return
            url = index.as_uri()
        try:
            with self.open(url, headers={"Accept": _ACCEPT}) as answer:
                kind, text = answer.headers.get("Content-Type") or "", answer.read()
                # Files on the same host need the same name and password.
                where = url if urlsplit(answer.url or url).netloc == urlsplit(_without_user(url)[0]).netloc else answer.url
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in _NOT_FOUND:
                return
            raise
        except urllib.error.URLError as error:
            if isinstance(error.reason, FileNotFoundError):
                return
            raise
        yield from _of_json(where, json.loads(text)) if "json" in kind else _of_html(where, text.decode("utf-8", "replace"))


# ---- pip's settings


def _settings(environ: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    listed = _pip_config()
    if listed is None:
        names = {key: f"PIP_{key.upper().replace('-', '_')}" for key in _KEYS}
        return {key: environ[name] for key, name in names.items() if environ.get(name)}
    for section in _SECTIONS:
        for line in listed:
            name, _, value = line.partition("=")
            where, _, key = name.partition(".")
            if where == section and key in _KEYS:
                found[key] = _literal(value)
    return found


def _literal(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (SyntaxError, ValueError):
        return text.strip("'\"")


def _pip_config() -> list[str] | None:
    """What ``pip config list`` prints; None if there is no pip."""
    lines = _pip("config", "list")
    return lines if lines is None else [line for line in lines if "=" in line]


def _pips_default() -> str:
    """The index that pip takes by itself; empty if there is no pip."""
    found = _DEFAULT.search(" ".join(" ".join(_pip("install", "--help") or ()).split()))
    return found[1] if found else ""


def _pip(*words: str) -> list[str] | None:
    """What a command of pip's prints, in lines; None if there is no pip."""
    programs = [[sys.executable, "-m", "pip"]]
    if program := shutil.which("pip"):
        programs.append([program])
    for program_ in programs:
        lines: list[str] = []
        try:
            if child_process.run([*program_, *words], output=lines.append, limit_s=_PIP_LIMIT_S) == 0:
                return lines
        except OSError:
            continue
    return None


# ---- addresses


def _without_user(url: str) -> tuple[str, str]:
    """An address without the name and password in it, and what stands for them in a header; empty if there are none."""
    parts = urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    if not at:
        return url, ""
    token = base64.b64encode(unquote(user).encode()).decode()
    return urlunsplit(parts._replace(netloc=place)), f"Basic {token}"


def _host(url: str) -> str:
    """What may be shown of an address."""
    return urlsplit(url).hostname or unquote(urlsplit(url).path)


def _reason(error: BaseException) -> str:
    reason = getattr(error, "reason", None)
    return words(reason) if isinstance(reason, BaseException) else words(error)


def _is_folder(link: str) -> bool:
    return _path(link) is not None


def _path(link: str) -> Path | None:
    scheme = urlsplit(link).scheme
    path = Path(unquote(urlsplit(link).path)) if scheme == "file" else Path(link).expanduser() if not scheme else None
    return path if path is not None and path.is_dir() else None


# ---- files


def _folder(link: str) -> Iterator[tuple[str, str, str, bool]]:
    for file in sorted((_path(link) or Path()).iterdir()):
        yield file.name, file.absolute().as_uri(), "", False


def _of_json(where: str, page: Any) -> Iterator[tuple[str, str, str, bool]]:
    for row in page["files"]:
        digest = (row.get("hashes") or {}).get("sha256", "")
        yield row["filename"], urljoin(where, row["url"]), digest, bool(row.get("yanked"))


class _Links(HTMLParser):
    """The links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keeps a link."""
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.found.append((str(given["href"]), "data-yanked" in given))


def _of_html(where: str, page: str) -> Iterator[tuple[str, str, str, bool]]:
    links = _Links()
    links.feed(page)
    for href, yanked in links.found:
        url, fragment = urldefrag(urljoin(where, href))
        digest = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
        yield unquote(urlsplit(url).path.rpartition("/")[2]), url, digest, yanked


def _files(rows: Sequence[tuple[str, str, str, bool]], distribution: str) -> Iterator[IndexFile]:
    wanted = canonicalize_name(distribution)
    for filename, url, digest, yanked in rows:
        try:
            is_wheel = filename.endswith(".whl")
            name, version = parse_wheel(filename)[:2] if is_wheel else parse_sdist_filename(filename)
        except (InvalidWheelFilename, InvalidSdistFilename):
            continue
        if name == wanted:
            yield IndexFile(filename, url, version, is_wheel, digest, yanked)


def copied(source: IO[bytes], target: IO[bytes], block: int = 1 << 20) -> int:
    """Copies a stream; returns the number of bytes."""
    total = 0
    while part := source.read(block):
        total += target.write(part)
    return total
