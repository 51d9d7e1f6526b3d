"""Finds the quirks that explain a command's outcome: delta debugging over the set of disabled quirks. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from quirks_core.base.record import Record

#: Runs the command with these quirks disabled; True if it passes.
Attempt = Callable[[frozenset[str]], bool]


class Finding(Record):
    """The result of a bisection.

    Attributes:
        candidates: The quirks that were tried.
        passes: The command passes with all candidates enabled; None if it was not run because there is no candidate.
        passes_without: The command passes with all candidates disabled; None as above.
        explanations: Disjoint sets of quirks. Disabling any one set turns the first outcome into the second, and each set is
            minimal: with one quirk less it does not. Other sets that overlap with these may do the same.
        flaky: Repeating the two base runs gave another outcome, so the result is not reliable.
    """

    candidates: tuple[str, ...]
    passes: bool | None = None
    passes_without: bool | None = None
    explanations: tuple[tuple[str, ...], ...] = ()
    flaky: bool = False

    @property
    def explained(self) -> bool:
        """Quirks explain the outcome, and the command is not known to be flaky."""
        return bool(self.explanations) and not self.flaky

    def __str__(self) -> str:
        if self.flaky:
            return "the command is flaky: run again with the same quirks, it ends differently"
        if not self.candidates:
            return "no quirk is a candidate: there is nothing to disable"
        if not self.explanations:
            return f"no quirk explains it: the command {'passes' if self.passes else 'fails'} with and without them"
        return _passes_because(self.explanations) if self.passes else _fails_unless(self.explanations)


def _fails_unless(explanations: Sequence[Sequence[str]]) -> str:
    if len(explanations) > 1:
        return "it fails unless one of these is disabled: " + "; ".join(map(_together, explanations))
    (quirks,) = explanations
    return (
        f"it fails unless {quirks[0]} is disabled" if len(quirks) == 1 else f"it fails unless {_together(quirks)} are disabled"
    )


def _together(quirks: Sequence[str]) -> str:
    return quirks[0] if len(quirks) == 1 else f"{' and '.join(quirks)} together"


def _passes_because(explanations: Sequence[Sequence[str]]) -> str:
    """Names the quirks that make the command pass: all sets are needed, and any one quirk of each set is enough."""
    if len(explanations) > 1:
        return "it passes only because of all of these: " + "; ".join(" or ".join(quirks) for quirks in explanations)
    (quirks,) = explanations
    enough = "" if len(quirks) == 1 else " (any one of them is enough)"
    return f"it passes only because of {' or '.join(quirks)}{enough}"


def bisect(candidates: Sequence[str], attempt: Attempt) -> Finding:
    """Finds which quirks explain a command's outcome.

    No set is attempted twice, except that the two base runs (nothing disabled, everything disabled) are repeated at the end.

    Args:
        candidates: Ids of the quirks to disable.
        attempt: Runs the command with these quirks disabled; True if it passes.
    """
    names = tuple(dict.fromkeys(candidates))
    if not names:
        return Finding(candidates=())
    none, everything = frozenset[str](), frozenset(names)
    passes: Attempt = functools.cache(attempt)
    before, after = passes(none), passes(everything)
    explanations: tuple[tuple[str, ...], ...] = ()
    if before is not after:
        explanations = tuple(_disjoint(names, lambda disabled: passes(disabled) is after))
    return Finding(
        candidates=names,
        passes=before,
        passes_without=after,
        explanations=explanations,
        flaky=attempt(none) is not before or attempt(everything) is not after,
    )


def _disjoint(names: tuple[str, ...], changes: Attempt) -> Iterator[tuple[str, ...]]:
    """Yields minimal sets until disabling all remaining quirks has no effect."""
    while changes(frozenset(names)):
        smallest = ddmin(names, changes)
        yield smallest
        names = tuple(name for name in names if name not in smallest)


def ddmin(items: Sequence[str], holds: Attempt) -> tuple[str, ...]:
    """Reduces a set to a smallest part for which something still holds: delta debugging (Zeller and Hildebrandt, 2002).

    Args:
        items: The set, in any order.
        holds: Called with parts of it; at most once with each.

    Returns:
        A part for which it holds, and for which it does not hold if any one item is removed (1-minimal). This is a smallest
        part if it also holds for every superset of a part for which it holds; otherwise a smaller one may exist.

    Raises:
        ValueError: It does not hold for the whole set.
    """
    test = functools.cache(holds)
    kept, parts = tuple(dict.fromkeys(items)), 2
    if not test(frozenset(kept)):
        raise ValueError("it does not hold for the whole set")
    if test(frozenset()):
        return ()
    while len(kept) > 1:
        chunks = [kept[len(kept) * i // parts : len(kept) * (i + 1) // parts] for i in range(parts)]
        rests = [tuple(item for item in kept if item not in chunk) for chunk in chunks]
        if (smaller := next((part for part in chunks if test(frozenset(part))), None)) is not None:
            kept, parts = smaller, 2
        elif (smaller := next((part for part in rests if test(frozenset(part))), None)) is not None:
            kept, parts = smaller, max(parts - 1, 2)
        elif parts < len(kept):
            parts = min(2 * parts, len(kept))
        else:
            break
    return kept
