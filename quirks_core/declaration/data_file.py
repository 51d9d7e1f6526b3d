"""The data file of a distribution: the sources that its patches expect, and the first releases of its quirks.

It is ``model_quirks.json`` in the top-level package of the declarations and ships with the distribution.
``quirks fingerprint --write`` updates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from pydantic import Field, ValidationError

from quirks_core.base import whole_file
from quirks_core.base.errors import UsageError
from quirks_core.base.record import Record
from quirks_core.declaration.adjustments import Patch
from quirks_core.declaration.quirk import Quirk
from quirks_core.facts.packages import distribution_of, installed_version
from quirks_core.source.vllm_source import INSTALLED, VllmSource

NAME = "model_quirks.json"


class KnownSource(Record):
    """A source that a patch was written against.

    Attributes:
        versions: The versions of its package that have this source.
    """

    versions: tuple[str, ...] = ()
    lines: str = Field("", exclude=True)  # digests of its lines, which nothing reads any more


class DataFile(Record):
    """The content of a data file.

    Attributes:
        since: First release of the distribution with each quirk. A quirk that is missing is new in the current release.
        fingerprints: The sources that patches were written against, by target and fingerprint.
    """

    since: Mapping[str, str] = {}
    fingerprints: Mapping[str, Mapping[str, KnownSource]] = {}

    def versions(self, target: str, expected: tuple[str, ...]) -> list[str]:
        """Returns the versions that have one of the expected sources of a target, as far as they are known."""
        known = self.fingerprints.get(target, {}).items()
        return [version for digits, one in known for version in one.versions if digits in expected]


def path_for(quirk: Quirk) -> Path | None:
    """Returns the path of the data file of a quirk's distribution; None if the quirk's module is not in a package."""
    package = quirk.location.module.partition(".")[0]
    return next((root / NAME for root in INSTALLED.places(package) if root.is_dir()), None) if package else None


def read_for(quirk: Quirk) -> DataFile:
    """Returns the data file of a quirk's distribution; an empty one if there is none.

    Raises:
        UsageError: It cannot be read.
    """
    path = path_for(quirk)
    return _read(path) if path is not None and path.is_file() else DataFile()


def since(quirk: Quirk, release: str) -> str:
    """Returns the release that first had a quirk: the current one for a quirk that is in no data file."""
    return read_for(quirk).since.get(quirk.id, release)


def updated(
    known: DataFile,
    quirks: tuple[Quirk, ...],
    release: str,
    versions: Mapping[str, str] | None = None,
    source: VllmSource = INSTALLED,
) -> DataFile:
    """Returns the data file of a distribution, updated from sources.

    It drops sources that no quirk expects any more, and adds those of `source` that are expected. With `versions`, only the
    packages that have one there are looked at.
    """
    return DataFile(
        since={quirk.id: known.since.get(quirk.id, release) for quirk in sorted(quirks, key=lambda quirk: quirk.id)},
        fingerprints={
            target: found
            for target, wanted in _expected(quirks)
            if (found := _sources(known, target, wanted, versions, source))
        },
    )


def write(path: Path, data: DataFile) -> None:
    """Writes a data file atomically, into a source tree.

    Raises:
        UsageError: It cannot be written, or its package is a copy that an installer made.
    """
    write_text(path, data.model_dump_json(indent=1, exclude_defaults=True) + "\n")
    _read.cache_clear()


def write_text(path: Path, text: str) -> None:
    """Writes a file of a package atomically, into a source tree.

    Raises:
        UsageError: It cannot be written, or its package is a copy that an installer made.
    """
    if _is_installed_copy(path.parent):
        raise UsageError(
            f"{path} is part of an installed copy, which no command edits; run 'pip install -e .' in its source tree first"
        )
    try:
        whole_file.write(path, text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def _is_installed_copy(package: Path) -> bool:
    """An installer lists the files that it copies in a RECORD beside them; those of an editable installation lie elsewhere."""
    records = package.parent.glob("*.dist-info/RECORD")
    return any(f"\n{package.name}/" in f"\n{record.read_text(encoding='utf-8', errors='replace')}" for record in records)


def _expected(quirks: tuple[Quirk, ...]) -> list[tuple[str, tuple[str, ...]]]:
    found: dict[str, tuple[str, ...]] = {}
    for quirk in quirks:
        for item in quirk.adjustments:
            if isinstance(item, Patch) and item.expects:
                found[item.target] = (*found.get(item.target, ()), *item.expects)
    return sorted(found.items())


def _sources(
    known: DataFile, target: str, wanted: tuple[str, ...], versions: Mapping[str, str] | None, source: VllmSource
) -> dict[str, KnownSource]:
    before = known.fingerprints.get(target, {})
    found = {digits: before[digits] for digits in wanted if digits in before}
    package = distribution_of(target.partition(":")[0].partition(".")[0])
    here = source.fingerprint(target) if versions is None or package in versions else None
    if here is not None and here in wanted:
        seen = before.get(here, KnownSource()).versions
        present = installed_version(package) if versions is None else versions[package]
        known_for = seen if present is None or present in seen else (*seen, present)
        found[here] = KnownSource(versions=known_for)
    return found


@lru_cache(maxsize=64)
def _read(path: Path) -> DataFile:
    try:
        return DataFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError:
        raise UsageError(
            f"{path} is no data file of quirks; delete it, and 'quirks fingerprint --write' makes it anew"
        ) from None
