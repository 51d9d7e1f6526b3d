"""Finds the release that brought each change between a good and a bad one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quirks_core.base.record import Record
from quirks_core.upgrade.finding import Finding, Level, Report, Section, Verdict, verdict_of

#: What changes from release to release without a change of behaviour.
_LEFT_OUT = frozenset({Section.REQUIREMENTS, Section.TRAINERS})


class Step(Record):
    """A release, and what it is the first to have.

    Attributes:
        version: The release.
        previous: The one before it, in the direction of the search.
        findings: What distinguishes it from the good release and the one before it does not have, the gravest first.
    """

    version: str
    previous: str
    findings: tuple[Finding, ...]


class Steps(Record):
    """The releases between a good and a bad one that brought a change.

    Attributes:
        good: The release that works.
        bad: The release that does not.
        looked_at: The releases whose source was read, in the order of the search.
        steps: Those that brought a change, in the direction of the search.
    """

    good: str
    bad: str
    looked_at: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def verdict(self) -> Verdict:
        """What the gravest finding means."""
        return verdict_of(finding for step in self.steps for finding in step.findings)


def find_steps(versions: Sequence[str], compare: Callable[[str], Report]) -> Steps:
    """Finds for every change between the first and the last release which one brought it, by bisection.

    A change that comes, goes and comes again is placed at one of its beginnings.

    Args:
        versions: The releases, from the good one to the bad one; two at least.
        compare: Compares the first release with another.

    Raises:
        ValueError: There are fewer than two.
    """
    if len(versions) < 2:
        raise ValueError("two releases are needed")
    reports: dict[int, dict[tuple[str, str], Finding]] = {0: {}}

    def findings(number: int) -> dict[tuple[str, str], Finding]:
        if number not in reports:
            found = [item for item in compare(versions[number]).findings if item.section not in _LEFT_OUT]
            reports[number] = {(item.section, item.subject): item for item in found}
        return reports[number]

    last = len(versions) - 1
    brought: dict[int, list[Finding]] = {}
    for key in findings(last):
        low, high = 0, last  # not in low, but in high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if key in findings(middle) else (middle, high)
        brought.setdefault(high, []).append(findings(high)[key])
    levels = list(Level)
    steps = tuple(
        Step(
            version=versions[number],
            previous=versions[number - 1],
            findings=tuple(sorted(brought[number], key=lambda item: levels.index(item.level))),
        )
        for number in sorted(brought)
    )
    return Steps(
        good=versions[0], bad=versions[-1], looked_at=tuple(versions[number] for number in sorted(reports)), steps=steps
    )
