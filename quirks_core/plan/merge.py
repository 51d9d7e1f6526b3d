"""Merges the proposals of several quirks for one slot into one value.

The requests for one place are a set, and everything else is a function of that set. Merging them is therefore commutative,
associative and idempotent. Each proposal allows a set of values, and a conflict is an empty intersection. A conflict absorbs:
with further proposals of the same strength it remains a conflict, and it keeps all quirks that are involved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from quirks_core.base.json_values import canonical
from quirks_core.declaration.adjustments import Relation, holds
from quirks_core.plan.records import Contributor


@dataclass(frozen=True, slots=True)
class Proposal:
    """A quirk's request for one slot. Two are equal if quirk, place, relation, operand and strength are equal.

    Attributes:
        place: Name of the slot and, for a mapping, the keys that lead to the value, outermost first.
        relation: How the slot's value must compare with the operand.
        operand: Already computed; any JSON value.
        required: True for a `Require`, false for a `Default`.
        contributor: The quirk.
        flag: The quirk's flag.
        remedy: What a user with a contradicting value should do.
        instead_of: The values that contradict; empty if every other value does.
        quirk: The quirk's id.
        key: Relation and operand as canonical JSON.
        text: The same with `instead_of`.
    """

    place: tuple[str, ...]
    relation: Relation
    operand: Any = field(compare=False)
    required: bool
    contributor: Contributor = field(compare=False)
    flag: str = field(default="", compare=False)
    remedy: str = field(default="", compare=False)
    instead_of: tuple[Any, ...] = field(default=(), compare=False)
    quirk: str = field(init=False)
    key: str = field(init=False)
    text: str = field(init=False)

    def __post_init__(self) -> None:
        if self.relation is Relation.INCLUDES:
            object.__setattr__(self, "operand", sorted(_unique(self.operand), key=canonical))
        object.__setattr__(self, "quirk", self.contributor.id)
        object.__setattr__(self, "key", canonical([self.relation, self.operand]))
        object.__setattr__(self, "text", self.key + canonical(self.instead_of) if self.instead_of else self.key)

    def allows(self, value: Any) -> bool:
        """Returns whether a value satisfies the proposal."""
        return holds(self.relation, self.operand, value)

    def parts(self) -> Iterator[Proposal]:
        """Yields a proposal for every key of a mapping; for any other value, the proposal itself."""
        if self.relation is not Relation.EQUALS or not isinstance(self.operand, dict):
            yield self
            return
        for key, value in sorted(self.operand.items()):
            yield from replace(self, operand=value, instead_of=(), place=(*self.place, key)).parts()


@dataclass(frozen=True)
class Proposals:
    """Everything that quirks request for one slot, or for one key of a mapping.

    Attributes:
        place: The slot's name and, for a mapping, the keys that lead to the value.
        proposals: The requests of all quirks.
    """

    place: tuple[str, ...]
    proposals: frozenset[Proposal]

    @property
    def slot(self) -> str:
        """The slot's name."""
        return self.place[0]

    @property
    def name(self) -> str:
        """The place as one text, for people."""
        return ".".join(self.place)

    @cached_property
    def strongest(self) -> tuple[Proposal, ...]:
        """The proposals that decide: requirements, or defaults if there are no requirements.

        If all requirements are for members, the members of defaults are added.
        """
        required = {item for item in self.proposals if item.required}
        if required and all(item.relation is Relation.INCLUDES for item in required):
            required |= {item for item in self.proposals if item.relation is Relation.INCLUDES}
        return in_order(required or self.proposals)

    @property
    def is_conflict(self) -> bool:
        """No value satisfies all of the strongest proposals."""
        return not self.candidates

    @cached_property
    def candidates(self) -> list[Any]:
        """The values among those named that all of the strongest allow, in order of preference; empty in a conflict.

        If the proposals allow any value together, they allow one of the values that they name: a bound, or a member of a list.
        """
        named: list[Any] = []
        for relation in (Relation.EQUALS, Relation.ONE_OF, Relation.AT_MOST, Relation.AT_LEAST):
            for item in self.strongest:
                if item.relation is relation:
                    named += item.operand if relation is Relation.ONE_OF else [item.operand]
        if joined := [item.operand for item in self.strongest if item.relation is Relation.INCLUDES]:
            named.append(sorted(_unique(member for members in joined for member in members), key=canonical))
        return [value for value in _unique(named) if all(item.allows(value) for item in self.strongest)]

    def value(self, present: Any = None) -> Any:
        """Returns the value that the slot gets; None in a conflict, which has none.

        Args:
            present: The slot's value before quirks; None if it is not set. Of several numbers, the one nearest to it is used.
        """
        candidates = self.candidates
        if len(candidates) > 1 and _is_number(present) and all(map(_is_number, candidates)):
            return min(candidates, key=lambda value: abs(value - present))
        return candidates[0] if candidates else None


def by_place(proposals: Iterable[Proposal]) -> tuple[Proposals, ...]:
    """Sorts proposals into sets, one for each slot and each key of a mapping, in alphabetical order."""
    places: dict[tuple[str, ...], set[Proposal]] = {}
    for part in (part for item in proposals for part in item.parts()):
        places.setdefault(part.place, set()).add(part)
    return tuple(Proposals(place, frozenset(parts)) for place, parts in sorted(places.items()))


def overlapping(all_proposals: tuple[Proposals, ...]) -> Iterator[tuple[Proposals, Proposals]]:
    """Yields pairs that exclude each other: a value for a key of a mapping, and values for keys below that key."""
    places = {asked.place: asked for asked in all_proposals}
    for inner in all_proposals:
        for length in range(1, len(inner.place)):
            if (outer := places.get(inner.place[:length])) is not None:
                yield outer, inner


def in_order(proposals: Iterable[Proposal]) -> tuple[Proposal, ...]:
    """Sorts proposals, so that the result does not depend on the order of registration."""
    return tuple(sorted(proposals, key=lambda item: (item.quirk, item.place, item.required, item.text)))


def _unique(values: Iterable[Any]) -> list[Any]:
    return list({canonical(value): value for value in values}.values())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
