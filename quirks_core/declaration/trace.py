"""Three-valued answers and the leaves they rest on."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum, auto
from typing import Any, NamedTuple

from quirks_core.base.errors import shortened


class Answer(StrEnum):
    """Kleene's three values. Unknown is never silent."""

    YES = auto()
    NO = auto()
    UNKNOWN = auto()

    def __invert__(self) -> Answer:
        return {Answer.YES: Answer.NO, Answer.NO: Answer.YES}.get(self, self)


class Leaf(NamedTuple):
    """One comparison: which fact, what was wanted of it, what it was."""

    fact: str
    wanted: str
    got: Any
    answer: Answer

    def inverted(self) -> Leaf:
        """The negation of the comparison."""
        return Leaf(self.fact, f"not {self.wanted}", self.got, ~self.answer)

    def __str__(self) -> str:
        nothing = "unknown" if self.answer is Answer.UNKNOWN else "nothing"
        got = nothing if self.got is None else shortened(str(self.got))
        return f"{self.fact}: wanted {self.wanted}, got {got}"


class Trace(NamedTuple):
    """An answer, every leaf that was looked at, and the one leaf that decided."""

    answer: Answer
    leaves: tuple[Leaf, ...]
    decisive: Leaf | None

    @classmethod
    def of(cls, leaf: Leaf) -> Trace:
        """The trace of a single comparison."""
        return cls(leaf.answer, (leaf,), leaf)

    def inverted(self) -> Trace:
        """The trace of the negation: each leaf wants the contrary, and got what it got."""
        decisive = None if self.decisive is None else self.decisive.inverted()
        return Trace(~self.answer, tuple(leaf.inverted() for leaf in self.leaves), decisive)


def all_of(traces: Iterable[Trace]) -> Trace:
    """Kleene's and: no if any is no, else unknown if any is unknown, else yes (also of nothing)."""
    return _combine(traces, (Answer.NO, Answer.UNKNOWN, Answer.YES))


def any_of(traces: Iterable[Trace]) -> Trace:
    """Kleene's or: yes if any is yes, else unknown if any is unknown, else no."""
    return _combine(traces, (Answer.YES, Answer.UNKNOWN, Answer.NO))


def _combine(traces: Iterable[Trace], by_weight: tuple[Answer, Answer, Answer]) -> Trace:
    strongest, second, weakest = by_weight
    leaves: list[Leaf] = []
    decided: Trace | None = None
    for trace in traces:  # the first of the weightiest answers decides
        leaves += trace.leaves
        if (
            decided is None
            or (trace.answer is strongest and decided.answer is not strongest)
            or (trace.answer is second and decided.answer is weakest)
        ):
            decided = trace
    return Trace(decided.answer, tuple(leaves), decided.decisive) if decided else Trace(weakest, (), None)
