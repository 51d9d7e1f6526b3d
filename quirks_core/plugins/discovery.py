"""Finds plugins from the metadata of installed distributions; imports none of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points

from quirks_core.base.errors import words
from quirks_core.declaration.flags import BUILT_IN

#: Name of the pluggy project and of the entry-point group.
PROJECT = "model_quirks"


@dataclass(frozen=True, slots=True)
class Discovered:
    """A plugin before loading: what its metadata says.

    Attributes:
        name: Name of the entry point.
        distribution: The distribution that has it.
        version: The distribution's version.
        entry_point: The entry point.
        problem: Why the metadata cannot be used; empty if it can.
    """

    name: str
    distribution: str
    version: str
    entry_point: EntryPoint
    problem: str = ""

    @property
    def module(self) -> str:
        """The module that loading would import."""
        return self.entry_point.value.partition(":")[0].strip()


def discover() -> list[Discovered]:
    """Finds every plugin from metadata, sorted; imports none."""
    try:
        points = [(point, point.dist) for point in entry_points(group=PROJECT)]
        having = {id(dist): dist for _, dist in points if dist is not None}
        names = {key: _name_and_version(dist) for key, dist in having.items()}
        found = [_discovered(point, names[id(dist)]) for point, dist in points]
    except Exception:  # one distribution's metadata is broken, and nobody's come; so one by one
        found = list(_one_by_one())
    return sorted(found, key=lambda item: (item.distribution != BUILT_IN, item.distribution, item.name))


def _one_by_one() -> Iterator[Discovered]:
    seen: set[str] = set()
    for dist in distributions():
        # The folder's name is there even where the metadata is not.
        name = str(getattr(dist, "name", None) or getattr(dist, "_path", "unknown")).rpartition(os.sep)[2]
        try:
            mine = [point for point in dist.entry_points if point.group == PROJECT]
            points = [_discovered(point, _name_and_version(dist)) for point in mine]
        except Exception as error:
            if PROJECT in _text(dist):
                point = EntryPoint("entry_points.txt", name, PROJECT)
                yield Discovered(point.name, name, "unknown", point, f"its metadata cannot be read: {words(error)}")
            continue
        if name not in seen:
            seen.add(name)
            yield from points


def _text(dist: Distribution) -> str:
    try:
        return dist.read_text("entry_points.txt") or ""
    except Exception:  # not even text; it may be anything, ours too
        return PROJECT


def _name_and_version(dist: Distribution) -> tuple[str, str]:
    """Reads them from the metadata file, which takes longer than everything else; so once per distribution."""
    metadata = dist.metadata
    if not isinstance(metadata["Name"], str):
        raise TypeError("a distribution without a name")
    return metadata["Name"], metadata["Version"] or "unknown"


def _discovered(point: EntryPoint, name_and_version: tuple[str, str]) -> Discovered:
    name, version = name_and_version
    problem = "" if point.pattern.match(point.value) else f"{point.value!r} is not of the form package.module:attribute"
    return Discovered(point.name, name, version, point, problem)
