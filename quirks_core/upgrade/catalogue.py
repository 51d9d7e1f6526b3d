"""Which quirks need work on a release: for those who maintain quirks, built-in ones or others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum, auto
from functools import partial

from quirks_core.base.record import Record
from quirks_core.configuration.slots import Place, slot_named
from quirks_core.declaration.adjustments import Default, Patch, Require
from quirks_core.declaration.probes import Probe, ask, in_words
from quirks_core.declaration.trace import Answer
from quirks_core.facts.context import Installation
from quirks_core.facts.packages import installed_versions
from quirks_core.plan.drift import drift_of
from quirks_core.plan.evaluate import affected, matches
from quirks_core.plan.loaded import Loaded
from quirks_core.plugins.registry import Registry
from quirks_core.upgrade.archive import PACKAGE
from quirks_core.upgrade.finding import Side
from quirks_core.upgrade.release import Release
from quirks_core.upgrade.run import packages_on


class Kind(StrEnum):
    """What is to be done with a quirk, or is to be known of it."""

    DRIFT = auto()  #: a patch's target has another source: read it, and extend or rewrite the patch
    ARGUMENT = auto()  #: it sets an engine argument that is gone
    CONTRADICTION = auto()  #: a probe finds the fix where the versions are affected, or the bug where they are fixed
    PROBE = auto()  #: a probe changed its answer, as the versions do
    ENDS = auto()  #: the release is the first of the two that is not affected
    BEGINS = auto()  #: the release is the first of the two that is affected


#: The kinds that are work.
WORK = frozenset({Kind.DRIFT, Kind.ARGUMENT, Kind.CONTRADICTION})


class Item(Record):
    """One thing about one quirk.

    Attributes:
        quirk: Its id.
        distribution: Its distribution.
        kind: What it is.
        message: In words.
        lines: Lines that changed.
        fingerprint: The fingerprint of a patch's target there; empty otherwise.
    """

    quirk: str
    distribution: str
    kind: Kind
    message: str
    lines: tuple[str, ...] = ()
    fingerprint: str = ""


class Catalogue(Record):
    """What a release means for the quirks that are installed.

    Attributes:
        before: The release that is compared with.
        after: The release.
        quirks: Number of quirks that were looked at.
        items: What was found, by quirk.
    """

    before: Side
    after: Side
    quirks: int
    items: tuple[Item, ...]

    @property
    def work(self) -> tuple[Item, ...]:
        """Returns what has to be done."""
        return tuple(item for item in self.items if item.kind in WORK)


def check_catalogue(registry: Registry, before: Release, after: Release) -> Catalogue:
    """Holds every quirk against a release.

    Args:
        registry: The quirks.
        before: The release to compare with.
        after: The release.
    """
    items = [item for loaded in registry.loaded for item in _items(loaded, before, after)]
    return Catalogue(before=before.side, after=after.side, quirks=len(registry.loaded), items=tuple(items))


def _items(loaded: Loaded, before: Release, after: Release) -> Iterator[Item]:
    quirk = loaded.quirk
    old, new = _answer(loaded, before), _answer(loaded, after)

    def item(kind: Kind, message: str, *lines: str, fingerprint: str = "") -> Item:
        return Item(
            quirk=quirk.id, distribution=f"{loaded.distribution} {loaded.version}", kind=kind, message=message, lines=lines,
            fingerprint=fingerprint,
        )  # fmt: skip

    ranges = "; ".join(f"{one.package} {one}" for one in quirk.affected)
    if old is Answer.YES and new is Answer.NO:
        yield item(Kind.ENDS, f"{after.label} is not affected any more ({ranges})")
    elif old is Answer.NO and new is Answer.YES:
        yield item(Kind.BEGINS, f"{after.label} is affected, and {before.label} is not ({ranges})")
    for probe in quirk.probes:
        yield from _probe(probe, before, after, new, item, partial(in_words, kind=quirk.kind))
    facts = Installation(_versions(after))
    needed = new is not Answer.NO and matches(quirk.match, facts).answer is not Answer.NO
    names = after.source.arguments.names() or frozenset()
    acting = [one for one in quirk.adjustments if one.when is None or matches(one.when, facts).answer is not Answer.NO]
    for adjustment in acting if needed else ():
        if isinstance(adjustment, Patch):
            is_vllm = adjustment.target.partition(".")[0] == PACKAGE
            problem = drift_of(adjustment, loaded.quirk, after.source) if is_vllm else None
            if problem:
                here = after.source.fingerprint(adjustment.target) or ""
                yield item(Kind.DRIFT, problem.reason, *map(str.strip, problem.lines), fingerprint=here)
        elif isinstance(adjustment, Default | Require) and _is_gone(adjustment.slot, names):
            yield item(Kind.ARGUMENT, f"it sets {adjustment.slot}, and {after.label} has no such argument")


def _is_gone(slot: str, names: frozenset[str]) -> bool:
    return bool(names) and slot_named(slot).place is Place.ARGUMENT and slot_named(slot).key not in names


def _probe(
    probe: Probe,
    before: Release,
    after: Release,
    in_range: Answer,
    item: Callable[[Kind, str], Item],
    words: Callable[[Answer], str],
) -> Iterator[Item]:
    """A probe's answers for both releases, held against the versions."""
    if probe.package != PACKAGE:
        return
    old, new = (ask(probe, source=release.source) for release in (before, after))
    answers = f"{probe}: {before.label} {words(old)}, {after.label} {words(new)}"
    if Answer.UNKNOWN not in (in_range, new) and in_range is not new:
        by_range = "affected" if in_range is Answer.YES else "not affected"
        yield item(Kind.CONTRADICTION, f"the versions say that {after.label} is {by_range}, but {answers}")
    elif old is not new:
        yield item(Kind.PROBE if new is not Answer.UNKNOWN else Kind.CONTRADICTION, answers)


def _answer(loaded: Loaded, release: Release) -> Answer:
    """Whether a release is affected by the versions."""
    return affected(Installation(_versions(release)), loaded.quirk).answer


def _versions(release: Release) -> dict[str, str]:
    found, _ = packages_on(release, installed_versions())
    return {**found, PACKAGE: release.version or ""}
