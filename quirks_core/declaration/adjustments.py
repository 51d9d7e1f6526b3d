"""The five adjustments that a quirk can request, as data: `Default`, `Require`, `Refuse`, `Advise` and `Patch`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from quirks_core.base.errors import DeclarationError, problem_of_text, shown
from quirks_core.configuration.slots import Slot, problem_of_name, slot_named
from quirks_core.declaration.match import Match
from quirks_core.facts.packages import distribution_of
from quirks_core.source.source_tree import DIGITS

if TYPE_CHECKING:
    from quirks_core.facts.context import RunContext


class Relation(StrEnum):
    """How the value of a slot must compare with the value that a quirk gives."""

    EQUALS = "="
    AT_MOST = "≤"
    AT_LEAST = "≥"
    ONE_OF = "one of"
    INCLUDES = "includes"


#: Marks a value that was not given; None is a value that a user can type.
_OPEN: Any = object()


def _relation(adjustment: _SlotAdjustment) -> tuple[Relation, Any]:
    """Returns the relation that was given, with its operand."""
    given = {
        Relation.EQUALS: adjustment.value,
        Relation.AT_MOST: adjustment.at_most,
        Relation.AT_LEAST: adjustment.at_least,
        Relation.ONE_OF: adjustment.one_of,
        Relation.INCLUDES: adjustment.includes,
    }
    chosen = [(relation, operand) for relation, operand in given.items() if operand is not (_OPEN if relation == "=" else None)]
    if len(chosen) != 1:
        what = type(adjustment).__name__
        raise DeclarationError(f"{what} of {adjustment.slot}: give one of a value, at_most=, at_least=, one_of= and includes=")
    return chosen[0]


def holds(relation: Relation, operand: Any, value: Any) -> bool:
    """Returns whether a relation is true for a value and an operand; false if the two cannot be compared."""
    try:
        match relation:
            case Relation.AT_MOST:
                return bool(value <= operand) and not isinstance(value, bool)
            case Relation.AT_LEAST:
                return bool(value >= operand) and not isinstance(value, bool)
            case Relation.ONE_OF:
                return is_among(value, operand)
            case Relation.INCLUDES:
                return isinstance(value, list | tuple) and all(is_among(member, value) for member in operand)
    except TypeError:  # a bound beside a text
        return False
    return same(value, operand)


def same(one: Any, other: Any) -> bool:
    """Compares values as JSON does, where true is not 1, at any depth; but 1 and 1.0 are the same number."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) and isinstance(one, bool) is isinstance(other, bool)


def is_among(value: Any, values: Iterable[Any]) -> bool:
    """Returns whether a value is the `same` as one of several."""
    return any(same(value, item) for item in values)


def problem_of_operand(slot: Slot, relation: Relation, operand: Any) -> str | None:
    """Returns why a slot cannot have a relation with an operand; None if it can."""
    if relation in (Relation.AT_MOST, Relation.AT_LEAST) and (not slot.is_number or isinstance(operand, bool)):
        return f"{slot.name} takes {slot.takes}, which has no bounds"
    if relation is Relation.INCLUDES and not slot.is_list:
        return f"{slot.name} takes {slot.takes}, which has no members"
    if relation is Relation.ONE_OF:
        if isinstance(operand, str) or not isinstance(operand, Sequence) or not operand:
            return f"{slot.name}: one_of takes a list of values, not {shown(operand)}"
        return next((problem for value in operand if (problem := slot.problem(value))), None)
    return slot.problem(operand)


def _check_slot(adjustment: _SlotAdjustment) -> None:
    relation, operand = _relation(adjustment)
    if problem := problem_of_name(adjustment.slot):
        raise DeclarationError(problem)
    slot = slot_named(adjustment.slot)
    if not callable(operand):
        if problem := problem_of_operand(slot, relation, operand):
            raise DeclarationError(problem)
        operand = [slot.plain(value) for value in operand] if relation is Relation.ONE_OF else slot.plain(operand)
    object.__setattr__(adjustment, "relation", relation)
    object.__setattr__(adjustment, "operand", operand)
    _check_texts(adjustment)


def _check_texts(adjustment: _SlotAdjustment | Refuse | Advise | Patch) -> None:
    for name in ("reason", "remedy", "message"):
        value = getattr(adjustment, name, "")
        if not (name == "message" and callable(value)) and (problem := problem_of_text(name, value)):
            raise DeclarationError(f"{type(adjustment).__name__}: {problem}")
    if adjustment.when is not None and not isinstance(adjustment.when, Match):
        raise DeclarationError(
            f"{type(adjustment).__name__}: when must be made by quirks_core.declaration.match, not {shown(adjustment.when)}"
        )


@dataclass(frozen=True, slots=True)
class _SlotAdjustment:
    """What `Default` and `Require` have in common: a slot, and how its value must relate to the operand."""

    slot: str
    value: Any = field(default=_OPEN, compare=False, repr=False)
    reason: str = field(default="", kw_only=True)
    when: Match | None = field(default=None, kw_only=True)
    at_most: Any = field(default=None, kw_only=True, compare=False, repr=False)
    at_least: Any = field(default=None, kw_only=True, compare=False, repr=False)
    one_of: Any = field(default=None, kw_only=True, compare=False, repr=False)
    includes: Any = field(default=None, kw_only=True, compare=False, repr=False)
    relation: Relation = field(init=False)
    operand: Any = field(init=False)

    def __post_init__(self) -> None:
        _check_slot(self)


@dataclass(frozen=True, slots=True)
class Default(_SlotAdjustment):
    """Sets a slot that the user did not set; an explicit value wins, and the plan notes it.

    Give exactly one of ``value``, ``at_most``, ``at_least``, ``one_of`` and ``includes``; each may be a pure function of the
    `RunContext` that returns it.

    Attributes:
        slot: Name of the slot.
        value: The slot has this value; if it is a mapping, these keys.
        at_most: It is at most this number.
        at_least: It is at least this number.
        one_of: It is one of these values; the first one if the slot is not set.
        includes: It has these members.
        reason: Why; the quirk's title if empty.
        when: An additional condition on the facts; the adjustment applies only if it is true.
        relation: Which of the five was given.
        operand: The value that was given.
    """


@dataclass(frozen=True, slots=True)
class Require(_SlotAdjustment):
    """A value that correctness needs: an explicit value that contradicts it stops the run, and the message names the switch.

    Attributes:
        slot: Name of the slot.
        value: As for `Default`; so are ``at_most``, ``at_least``, ``one_of``, ``includes``, ``reason``, ``when``, ``relation``
            and ``operand``.
        remedy: What a user with a contradicting value should do; derived from the slot if empty.
        instead_of: The value or values that contradict; empty if every other value does.
    """

    remedy: str = field(default="", kw_only=True)
    instead_of: Any = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        contrary = self.instead_of if isinstance(self.instead_of, list | tuple) else (self.instead_of,)
        object.__setattr__(self, "instead_of", tuple(contrary))
        _check_slot(self)


@dataclass(frozen=True, slots=True)
class Refuse:
    """The combination cannot work: the run stops before the engine starts.

    Attributes:
        reason: Why it cannot work.
        remedy: What to do instead.
        when: An additional condition on the facts; the adjustment applies only if it is true.
    """

    reason: str
    remedy: str
    when: Match | None = None

    def __post_init__(self) -> None:
        _check_texts(self)


@dataclass(frozen=True, slots=True)
class Advise:
    """A warning.

    Attributes:
        message: The text, or a pure function of the `RunContext` that returns it.
        when: An additional condition on the facts; the adjustment applies only if it is true.
    """

    message: str | Callable[[RunContext], str]
    when: Match | None = None

    def __post_init__(self) -> None:
        _check_texts(self)


@dataclass(frozen=True, slots=True)
class Patch:
    """Wraps, replaces or adds one attribute of an installed package, in every engine process, with a guard against drift.

    Attributes:
        target: ``package.module:Class.attribute`` or ``package.module:function``; also a constant or a field.
        wrapper: ``package.module:function``; gets the original function and returns the new one. Several wrappers of one target
            are nested in the order of their quirks' ids.
        replacement: ``package.module:object``; replaces the target. No other patch may change the target or anything in it.
        adds: ``package.module:object``; added as a new attribute. If the target exists, that is drift.
        expects: Fingerprints of every source of the target that the patch was written against; ``quirks fingerprint`` prints
            them. Any other source is refused.
        reason: Why; the quirk's title if empty.
        when: An additional condition on the facts; the adjustment applies only if it is true.
    """

    target: str
    wrapper: str = ""
    replacement: str = ""
    adds: str = ""
    expects: tuple[str, ...] = ()
    reason: str = ""
    when: Match | None = None

    def __post_init__(self) -> None:
        expects = (self.expects,) if isinstance(self.expects, str) else self.expects
        if wrong := [item for item in expects if not isinstance(item, str) or len(item) < DIGITS]:
            raise DeclarationError(f"Patch of {shown(self.target)}: {shown(wrong[0])} in expects is no fingerprint")
        object.__setattr__(self, "expects", tuple(item[:DIGITS] for item in expects))
        if [bool(self.wrapper), bool(self.replacement), bool(self.adds)].count(True) != 1:
            raise DeclarationError(f"Patch of {shown(self.target)}: give one of a wrapper, a replacement and adds=")
        for name, text in (("target", self.target), ("wrapper, replacement or adds", self.source)):
            if problem := problem_of_text(name, text):
                raise DeclarationError(f"Patch: {problem}")
            module, colon, attribute = text.partition(":")
            if not (module and colon and attribute):
                raise DeclarationError(f"Patch: {text!r} is not of the form 'package.module:attribute'")
        if self.adds and self.expects:
            raise DeclarationError(f"Patch of {self.target}: what is added has no source before, so leave expects out")
        if not self.adds and not self.expects:
            raise DeclarationError(
                f"Patch of {self.target}: name the fingerprints it was written against (quirks fingerprint {self.target})"
            )
        _check_texts(self)

    @property
    def source(self) -> str:
        """Where the new code comes from."""
        return self.wrapper or self.replacement or self.adds

    @property
    def package(self) -> str:
        """The package that it patches, under the name that version ranges use."""
        return distribution_of(self.target.partition(":")[0].partition(".")[0])


Adjustment = Default | Require | Refuse | Advise | Patch
