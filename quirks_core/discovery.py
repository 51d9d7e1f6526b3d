"""Finds plugins from the metadata of installed distributions; imports none of them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from quirks_core.flags import BUILT_IN

#: Name of the pluggy project and of the entry-point group.
PROJECT = "model_quirks"


@dataclass(frozen=True, slots=True)
class Discovered:
    """A plugin before loading: what its metadata says."""

    name: str
    distribution: str
    version: str
    entry_point: EntryPoint

    @property
    def module(self) -> str:
        """The module that loading would import."""
        return self.entry_point.module


def discover() -> list[Discovered]:
    """Finds every plugin from metadata, sorted; imports none."""
    found = [
        Discovered(
            name=point.name,
            distribution=point.dist.name if point.dist else "unknown",
            version=point.dist.version if point.dist else "0",
            entry_point=point,
        )
        for point in entry_points(group=PROJECT)
    ]
    return sorted(found, key=lambda item: (item.distribution != BUILT_IN, item.distribution, item.name))
