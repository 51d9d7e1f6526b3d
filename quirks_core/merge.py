"""How the wishes of several quirks for one slot become one value.

A ledger is a set of wishes, and everything else is a function of that set. Merging ledgers is therefore commutative,
associative and idempotent by construction; and a conflict absorbs: whatever of its strength joins it, it stays a conflict and
keeps everybody who took part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from quirks_core.plan import Contributor, canonical
from quirks_core.slots import SLOTS, SlotKind


@dataclass(frozen=True, slots=True)
class Wish:
    """What one quirk wants of one slot. Equal if quirk, place, value and strength are.

    Attributes:
        slot: Name of the slot.
        value: The value, already computed; any JSON value.
        required: Asked for by `Require`; otherwise by `Default`.
        contributor: The quirk.
        flag: The quirk's flag.
        remedy: What a user with a contrary value should do.
        instead_of: The only contrary values; empty if every other value is.
        keys: Of a mapping, the way to the value, from the outside in.
        quirk: The quirk's id.
        text: Value and `instead_of` as canonical JSON.
    """

    slot: str
    value: Any = field(compare=False)
    required: bool
    contributor: Contributor = field(compare=False)
    flag: str = field(default="", compare=False)
    remedy: str = field(default="", compare=False)
    instead_of: tuple[Any, ...] = field(default=(), compare=False)
    keys: tuple[str, ...] = ()
    quirk: str = field(init=False)
    text: str = field(init=False)

    def __post_init__(self) -> None:
        value = sorted(set(self.value)) if SLOTS[self.slot].kind is SlotKind.SET else self.value
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "quirk", self.contributor.id)
        object.__setattr__(self, "text", canonical([value, list(self.instead_of)]))

    @property
    def key(self) -> str:
        """The value as canonical JSON."""
        return canonical(self.value)

    @property
    def place(self) -> tuple[str, ...]:
        """Slot and keys."""
        return (self.slot, *self.keys)

    def parts(self) -> Iterator[Wish]:
        """Yields a wish for every key of a mapping; of any other slot, the wish itself."""
        if SLOTS[self.slot].kind is not SlotKind.MAPPING or not isinstance(self.value, dict):
            yield self
            return
        for key, value in sorted(self.value.items()):
            part = Wish(self.slot, value, self.required, self.contributor, self.flag, self.remedy, keys=(*self.keys, key))
            yield from part.parts()


@dataclass(frozen=True, slots=True)
class Ledger:
    """Everything that quirks want of one slot, or of one key of a mapping.

    Attributes:
        place: The slot's name and, of a mapping, the way to the key.
        wishes: Who wants what.
    """

    place: tuple[str, ...]
    wishes: frozenset[Wish]

    def __or__(self, other: Ledger) -> Ledger:
        """Merges two ledgers of one place."""
        return Ledger(self.place, self.wishes | other.wishes)

    @property
    def slot(self) -> str:
        """The slot's name."""
        return self.place[0]

    @property
    def name(self) -> str:
        """The place as one text, for people."""
        return ".".join(self.place)

    @property
    def kind(self) -> SlotKind:
        """How wishes become a value; a key of a mapping is a scalar."""
        kind = SLOTS[self.slot].kind
        return SlotKind.SCALAR if kind is SlotKind.MAPPING else kind

    @property
    def strongest(self) -> tuple[Wish, ...]:
        """The wishes that decide: requirements, or defaults where nobody requires anything; all of a set's. In order."""
        required = {wish for wish in self.wishes if wish.required}
        return in_order((self.kind is not SlotKind.SET and required) or self.wishes)

    @property
    def is_conflict(self) -> bool:
        """Equally strong wishes exclude each other."""
        return self.kind is SlotKind.SCALAR and len({wish.key for wish in self.strongest}) > 1

    @property
    def value(self) -> Any:
        """The value; None in a conflict, which has none."""
        if self.is_conflict:
            return None
        values = [wish.value for wish in self.strongest]
        match self.kind:
            case SlotKind.AT_MOST:
                return min(values)
            case SlotKind.AT_LEAST:
                return max(values)
            case SlotKind.SET:
                return sorted({member for value in values for member in value})
        return values[0]


def ledgers(wishes: frozenset[Wish]) -> tuple[Ledger, ...]:
    """Sorts wishes into ledgers, one for each slot and each key of a mapping, in alphabetical order."""
    places: dict[tuple[str, ...], set[Wish]] = {}
    for part in (part for wish in wishes for part in wish.parts()):
        places.setdefault(part.place, set()).add(part)
    return tuple(Ledger(place, frozenset(parts)) for place, parts in sorted(places.items()))


def overlapping(all_ledgers: tuple[Ledger, ...]) -> Iterator[tuple[Ledger, Ledger]]:
    """Yields pairs that cannot both be: a value for a key of a mapping, and values for keys below that key."""
    by_place = {ledger.place: ledger for ledger in all_ledgers}
    for inner in all_ledgers:
        for length in range(1, len(inner.place)):
            if (outer := by_place.get(inner.place[:length])) is not None:
                yield outer, inner


def in_order(wishes: Iterable[Wish]) -> tuple[Wish, ...]:
    """Sorts wishes so that the order of registration cannot show."""
    return tuple(sorted(wishes, key=lambda wish: (wish.quirk, wish.place, wish.required, wish.text)))
