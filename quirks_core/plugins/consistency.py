"""Checks across plugins: each id has one owner, and quirks do not supersede each other in a cycle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from quirks_core.declaration.flags import BUILT_IN
from quirks_core.declaration.quirk import Quirk
from quirks_core.plugins.discovery import Discovered

#: Every plugin with the quirks that it declares.
Plugins = Sequence[tuple[Discovered, list[Quirk]]]
#: Plugins that must not be loaded, each with the reason.
Problems = list[tuple[Discovered, str]]


def duplicate_ids(plugins: Plugins) -> Problems:
    """An id belongs to model-quirks if that declares it; otherwise all that declare it are broken."""
    owners: dict[str, list[tuple[Discovered, Quirk]]] = {}
    for item, quirks in plugins:
        for quirk in quirks:
            owners.setdefault(quirk.id, []).append((item, quirk))
    found: dict[int, tuple[Discovered, str]] = {}
    for quirk_id, claims in owners.items():
        if len(claims) > 1:
            for item, quirk in claims:
                if item.distribution == BUILT_IN:
                    continue
                others = [(other, same) for other, same in claims[:4] if same is not quirk or other is not item]
                words = " and ".join(f"{other.distribution} {other.version} ({q.location})" for other, q in others) or "itself"
                found[id(item)] = (item, f"quirk id {quirk_id!r} is taken by {words}")
    return list(found.values())


def circular_supersedes(plugins: Plugins) -> Problems:
    """Quirks that replace each other in a circle replace nothing; a third party's circle does not break what is built in."""
    left = list(plugins)
    found: Problems = []
    while circle := find_circle({quirk.id: quirk.supersedes for _, quirks in left for quirk in quirks}):
        owner = {quirk.id: item for item, quirks in left for quirk in quirks}
        third_party = [name for name in circle if owner[name].distribution != BUILT_IN]
        guilty = {id(owner[name]): owner[name] for name in third_party or circle}
        found += [(item, f"circular supersedes: {' → '.join(circle)}") for item in guilty.values()]
        left = [(item, quirks) for item, quirks in left if id(item) not in guilty]
    return found


def find_circle(replaced: Mapping[str, Iterable[str]]) -> list[str]:
    """Returns the ids of a circle, each before one that it replaces, the first one again at its end; empty if there is none."""
    try:
        TopologicalSorter(replaced).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))  # the error lists them in reverse order
    return []
