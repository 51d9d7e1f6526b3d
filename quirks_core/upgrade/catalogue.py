"""Which quirks need work on a release: for those who maintain quirks, built-in ones or others."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum, auto
from typing import Any

from quirks_core.base.record import Record
from quirks_core.configuration.slots import Place, slot_named
from quirks_core.declaration.adjustments import Default, Patch, Require
from quirks_core.declaration.probes import ask, in_words
from quirks_core.declaration.quirk import Quirk
from quirks_core.declaration.trace import Answer
from quirks_core.facts.context import Installation
from quirks_core.facts.packages import installed_versions
from quirks_core.plan.drift import drift_of
from quirks_core.plan.evaluate import affected, matches
from quirks_core.plugins.registry import Registry
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.page import Page
from quirks_core.upgrade.archive import PACKAGE
from quirks_core.upgrade.finding import Compared, Verdict, changed_lines
from quirks_core.upgrade.release import Release


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
        lines: What shows it: lines that changed.
        fingerprint: The fingerprint of a patch's target there; empty otherwise.
    """

    quirk: str
    distribution: str
    kind: Kind
    message: str
    lines: tuple[str, ...] = ()
    fingerprint: str = ""


class Catalogue(Compared):
    """What a release means for the quirks that are installed.

    Attributes:
        quirks: Number of quirks that were looked at.
        items: What was found, by quirk.
    """

    quirks: int
    items: tuple[Item, ...]

    @property
    def work(self) -> tuple[Item, ...]:
        """Returns what has to be done."""
        return tuple(item for item in self.items if item.kind in WORK)

    @property
    def verdict(self) -> Verdict:
        """Whether something has to be done."""
        return Verdict.CHANGES if self.work else Verdict.GO

    def to_json(self) -> dict[str, Any]:
        """Returns it for a program."""
        return {"work": len(self.work), **self.model_dump(mode="json")}

    def page(self) -> Page:
        """Returns what has to be done, and then what else is to be known."""
        items = sorted(self.items, key=lambda item: (item.kind not in WORK, item.quirk))
        return Page(
            head=f"{self.sides}: {len(self.work)} of {self.quirks} quirks need work",
            parts=[("", [_finding(item) for item in items] or [Finding("ok", "", "nothing changes for any of them")])],
            notes=self.notes,
            to_do=frozenset(WORK),
        )


def _finding(item: Item) -> Finding:
    right = f'when it is right there too: expects=(…, "{item.fingerprint}"), then --catalogue --write'
    lines = (*item.lines, right) if item.fingerprint else item.lines
    return Finding(item.kind, f"{item.quirk} ({item.distribution})", item.message, lines)


def check_catalogue(registry: Registry, before: Release, after: Release) -> Catalogue:
    """Holds every quirk against a release."""
    items = [
        Item(quirk=one.quirk.id, distribution=f"{one.distribution} {one.version}", **row)
        for one in registry.loaded
        for row in _rows(one.quirk, before, after)
    ]
    return Catalogue(before=before, after=after, quirks=len(registry.loaded), items=tuple(items))


def _rows(quirk: Quirk, before: Release, after: Release) -> Iterator[dict[str, Any]]:
    old, new = (affected(_installation(release), quirk).answer for release in (before, after))
    ranges = "; ".join(f"{one.package} {one}" for one in quirk.affected)
    if old is Answer.YES and new is Answer.NO:
        yield {"kind": Kind.ENDS, "message": f"{after.label} is not affected any more ({ranges})"}
    elif old is Answer.NO and new is Answer.YES:
        yield {"kind": Kind.BEGINS, "message": f"{after.label} is affected, and {before.label} is not ({ranges})"}
    for probe in (one for one in quirk.probes if one.package == PACKAGE):
        was, now = (ask(probe, source=release.source) for release in (before, after))
        answers = f"{probe}: {before.label} {in_words(was, quirk.kind)}, {after.label} {in_words(now, quirk.kind)}"
        if Answer.UNKNOWN not in (new, now) and new is not now:
            by_range = "affected" if new is Answer.YES else "not affected"
            message = f"the versions say that {after.label} is {by_range}, but {answers}"
            yield {"kind": Kind.CONTRADICTION, "message": message}
        elif was is not now:
            yield {"kind": Kind.PROBE if now is not Answer.UNKNOWN else Kind.CONTRADICTION, "message": answers}
    if new is not Answer.NO:
        yield from _misfits(quirk, before, after)


def _misfits(quirk: Quirk, before: Release, after: Release) -> Iterator[dict[str, Any]]:
    """Patches and arguments of a quirk that some run may need on a release, and that do not fit it."""
    facts = _installation(after)
    names = after.source.arguments.names() or frozenset()
    for adjustment in quirk.adjustments:
        conditions = (one for one in (quirk.match, adjustment.when) if one is not None)
        if any(matches(one, facts).answer is Answer.NO for one in conditions):
            continue
        if isinstance(adjustment, Patch) and adjustment.target.partition(".")[0] == PACKAGE:
            if problem := drift_of(adjustment, quirk, after.source):
                here = after.source.fingerprint(adjustment.target) or ""
                was, now = (side.source.attribute_source(adjustment.target) for side in (before, after))
                lines = (*problem.lines, *changed_lines(was, now))
                yield {"kind": Kind.DRIFT, "message": problem.reason, "lines": lines, "fingerprint": here}
        elif isinstance(adjustment, Default | Require) and names:
            slot = slot_named(adjustment.slot)
            if slot.place is Place.ARGUMENT and slot.key not in names:
                message = f"it sets {adjustment.slot}, and {after.label} has no such argument"
                yield {"kind": Kind.ARGUMENT, "message": message}


def _installation(release: Release) -> Installation:
    found, _ = release.packages(installed_versions())
    return Installation({**found, PACKAGE: release.version or ""})
