"""Finds plugins from the metadata of installed distributions; imports none of them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, entry_points

from quirks_core.declaration.flags import BUILT_IN

#: Name of the pluggy project and of the entry-point group.
PROJECT = "model_quirks"


@dataclass(frozen=True, slots=True)
class Discovered:
    """A plugin before loading: its metadata.

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
    points = [(point, point.dist) for point in entry_points(group=PROJECT)]
    # The metadata file takes longer to read than everything else; so once per distribution.
    names = {id(dist): _name_and_version(dist) for dist in {id(dist): dist for _, dist in points}.values()}
    found = [_discovered(point, names[id(dist)]) for point, dist in points]
    return sorted(found, key=lambda item: (item.distribution != BUILT_IN, item.distribution, item.name))


def _name_and_version(dist: Distribution | None) -> tuple[str, str]:
    if dist is None:
        return "unknown", "unknown"
    return dist.metadata["Name"] or "unknown", dist.metadata["Version"] or "unknown"


def _discovered(point: EntryPoint, name_and_version: tuple[str, str]) -> Discovered:
    name, version = name_and_version
    problem = "" if point.pattern.match(point.value) else f"{point.value!r} is not of the form package.module:attribute"
    return Discovered(point.name, name, version, point, problem)
