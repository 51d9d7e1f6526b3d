"""What must hold between plugins: an id has one owner, and quirks do not supersede each other in a circle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from quirks_core.discovery import Discovered
from quirks_core.flags import BUILT_IN
from quirks_core.quirk import Quirk

#: Every plugin with the quirks that it declares.
Plugins = Sequence[tuple[Discovered, list[Quirk]]]
#: Plugins that must go, each with the reason.
Problems = list[tuple[Discovered, str]]


def duplicate_ids(plugins: Plugins) -> Problems:
    """An id belongs to model-quirks if that declares it; otherwise nobody can tell, and all who declare it are broken."""
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
    while circles := _circles({quirk.id: quirk.supersedes for _, quirks in left for quirk in quirks if quirk.supersedes}):
        owner = {quirk.id: item for item, quirks in left for quirk in quirks}
        guilty: dict[int, tuple[Discovered, str]] = {}
        for circle in circles:
            third_party = [name for name in circle if owner[name].distribution != BUILT_IN]
            for name in third_party or circle:
                words = f"circular supersedes: {' → '.join([*circle, circle[0]])}"
                guilty.setdefault(id(owner[name]), (owner[name], words))
        found += guilty.values()
        left = [(item, quirks) for item, quirks in left if id(item) not in guilty]
    return found


def _circles(replaced: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Returns circles, none of them twice, and at least one if there is any: a depth-first search."""
    circles: list[list[str]] = []
    done: set[str] = set()
    for start in replaced:
        way: dict[str, Iterator[str]] = {} if start in done else {start: iter(replaced[start])}
        while way:
            last = next(reversed(way))
            following = next(way[last], None)
            if following is None:
                done.add(last)
                del way[last]
            elif following in way:
                names = list(way)
                circles.append(names[names.index(following) :])
            elif following in replaced and following not in done:
                way[following] = iter(replaced[following])
    return circles
