"""Finds the quirks that explain a command's outcome: a minimal set of them, by halves. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from quirks_core.base.record import Record

#: Runs the command with these quirks disabled; True if it passes.
Attempt = Callable[[frozenset[str]], bool]


class Finding(Record):
    """The result of a bisection.

    Attributes:
        candidates: The quirks that were tried.
        passes: The command passes with all candidates enabled; None if it was not run because there is no candidate.
        passes_without: The command passes with all candidates disabled; None as above.
        explanation: A minimal set of quirks: disabling it turns the first outcome into the second, and with one quirk less
            it does not. Other sets may do the same.
        flaky: Repeating the two base runs gave another outcome, so the result is not reliable.
    """

    candidates: tuple[str, ...]
    passes: bool | None = None
    passes_without: bool | None = None
    explanation: tuple[str, ...] = ()
    flaky: bool = False

    @property
    def explained(self) -> bool:
        """Quirks explain the outcome, and the command is not known to be flaky."""
        return bool(self.explanation) and not self.flaky

    def __str__(self) -> str:
        if self.flaky:
            return "the command is flaky: run again with the same quirks, it ends differently"
        if not self.candidates:
            return "no quirk is a candidate: there is nothing to disable"
        if not self.explanation:
            return f"no quirk explains it: the command {'passes' if self.passes else 'fails'} with and without them"
        together = " together" if len(self.explanation) > 1 else ""
        return f"it {'fails' if self.passes else 'passes'} with {' and '.join(self.explanation)} disabled{together}"


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
    explanation = smallest(names, lambda disabled: passes(disabled) is after) if before is not after else ()
    return Finding(
        candidates=names,
        passes=before,
        passes_without=after,
        explanation=explanation,
        flaky=attempt(none) is not before or attempt(everything) is not after,
    )


def smallest(items: tuple[str, ...], holds: Attempt) -> tuple[str, ...]:
    """Reduces a set for which something holds: takes out halves, quarters and so on, down to single items, while it holds.

    Returns:
        A part for which it holds. Without any one item it does not, if it holds for every superset of a part for which it does.
    """
    size = len(items)
    while size > 1:
        size = (size + 1) // 2
        start = 0
        while start < len(items):
            rest = items[:start] + items[start + size :]
            if rest and holds(frozenset(rest)):
                items = rest
            else:
                start += size
    return items
