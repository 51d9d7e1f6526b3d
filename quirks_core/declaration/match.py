"""Matchers: few, declarative, three-valued, and each able to report what it wanted and what it got.

They combine with ``&``, ``|`` and ``~``::

    match = model_type("gemma3", "gemma3_text") & setting("train.context_parallel_size").above(1)

A fact is compared with a constant or with another fact::

    match = setting("parallel.expert_parallel_size").above(setting("engine.tensor_parallel_size"))
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from quirks_core.base.errors import DeclarationError, nearest
from quirks_core.configuration.slots import problem_of_name, slot_around
from quirks_core.declaration.operators import BETWEEN_FACTS, OPERATORS, compiled
from quirks_core.declaration.trace import Answer, Leaf, Trace, all_of, any_of
from quirks_core.declaration.versions import Affected
from quirks_core.facts.unknown import UNKNOWN, Facts


class Words(NamedTuple):
    """What a condition means to a reader, and what its contrary does: a clause, as in "the engine is our worker's"."""

    holds: str
    contrary: str


class Match(ABC):
    """A condition on facts."""

    __slots__ = ()

    @abstractmethod
    def trace(self, facts: Facts) -> Trace:
        """Evaluates the condition; no side effects."""

    def facts(self) -> Iterator[str]:
        """Yields the names of the facts that the condition reads."""
        yield from ()

    def model_types(self) -> frozenset[str] | None:
        """Returns the model types without which the condition cannot hold; None if others are possible.

        The registry's index rests on it, so a wrong answer hides a quirk. None is always right.
        """
        return None

    def __str__(self) -> str:
        return f"{type(self).__module__}.{type(self).__qualname__}"

    def __and__(self, other: Match) -> All:
        return All((*_flat(All, self), *_flat(All, other)))

    def __or__(self, other: Match) -> AnyOf:
        return AnyOf((*_flat(AnyOf, self), *_flat(AnyOf, other)))

    def __invert__(self) -> Not:
        return Not(self)


def described(match: Match, holds: str, contrary: str) -> Match:
    """Returns a condition that pages show in these words instead of its parts (`Words`); it decides as before."""
    whole = match if isinstance(match, All | AnyOf | Condition) else All((match,))
    return replace(whole, words=Words(holds, contrary))


def _flat(kind: type[All] | type[AnyOf], match: Match) -> tuple[Match, ...]:
    """The parts of a match of that kind, so that a long chain does not nest; one with words of its own stays whole."""
    return match.parts if isinstance(match, kind) and match.words is None else (match,)


@dataclass(frozen=True, slots=True)
class _Several(Match):
    """What `All` and `AnyOf` have in common; each evaluates every part, so that the trace shows them all."""

    parts: tuple[Match, ...] = ()
    words: Words | None = field(default=None, compare=False, repr=False)

    def facts(self) -> Iterator[str]:
        """Those of every part."""
        for part in self.parts:
            yield from part.facts()

    def _joined(self, word: str, nothing: str) -> str:
        texts = (
            f"({part})" if isinstance(part, _Several) and type(part) is not type(self) else str(part) for part in self.parts
        )
        return self.words.holds if self.words is not None else f" {word} ".join(texts) or nothing


@dataclass(frozen=True, slots=True)
class All(_Several):
    """Every part holds."""

    def trace(self, facts: Facts) -> Trace:
        """Evaluates the parts."""
        return all_of(part.trace(facts) for part in self.parts)

    def model_types(self) -> frozenset[str] | None:
        """What all parts that are bound to model types allow."""
        bound = [types for part in self.parts if (types := part.model_types()) is not None]
        return frozenset.intersection(*bound) if bound else None

    def __str__(self) -> str:
        return self._joined("and", "every run")


@dataclass(frozen=True, slots=True)
class AnyOf(_Several):
    """At least one part holds."""

    def trace(self, facts: Facts) -> Trace:
        """Evaluates the parts."""
        return any_of(part.trace(facts) for part in self.parts)

    def model_types(self) -> frozenset[str] | None:
        """What any part allows, if every part is bound to model types."""
        bound = [part.model_types() for part in self.parts]
        return None if None in bound else frozenset().union(*filter(None, bound))

    def __str__(self) -> str:
        return self._joined("or", "no run")


@dataclass(frozen=True, slots=True)
class Not(Match):
    """The part does not hold; unknown stays unknown."""

    part: Match

    def trace(self, facts: Facts) -> Trace:
        """Evaluates the part and inverts its answer."""
        return _trace_of_contrary(self.part, facts)

    def facts(self) -> Iterator[str]:
        """Those of the part."""
        yield from self.part.facts()

    def __str__(self) -> str:
        if isinstance(self.part, All | AnyOf | Condition) and self.part.words is not None:
            return self.part.words.contrary
        return self.part.contrary if type(self.part) is Condition else f"not ({self.part})"


def _trace_of_contrary(part: Match, facts: Facts) -> Trace:
    """Evaluates the negation of a match, pushed down to its comparisons (De Morgan), so that each reports what it wants."""
    if type(part) is Not:
        return part.part.trace(facts)
    if type(part) is All:
        return any_of(_trace_of_contrary(one, facts) for one in part.parts)
    if type(part) is AnyOf:
        return all_of(_trace_of_contrary(one, facts) for one in part.parts)
    return part.trace_of_contrary(facts) if type(part) is Condition else part.trace(facts).inverted()


@dataclass(frozen=True, slots=True)
class Condition(Match):
    """A single comparison of one fact, with a constant or with another fact, by one of `OPERATORS`."""

    name: str
    operator: str
    operand: Any = None
    wanted: str = field(init=False, compare=False, repr=False)
    words: Words | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.operand, list):
            object.__setattr__(self, "operand", tuple(self.operand))
        if self.operator not in OPERATORS:
            raise DeclarationError(
                f"condition on {self.name}: unknown operator {self.operator!r}{nearest(self.operator, OPERATORS)}"
            )
        if self.operator == "matches":
            try:
                compiled(self.operand)
            except (re.error, TypeError) as error:
                raise DeclarationError(f"condition on {self.name}: {self.operand!r} is no pattern: {error}") from None
        other = self.operand.name if isinstance(self.operand, Fact) else self.operand
        if other is not self.operand and self.operator not in BETWEEN_FACTS:
            raise DeclarationError(
                f"condition on {self.name}: {self.operator} takes no fact ({other}); {', '.join(BETWEEN_FACTS)} do"
            )
        object.__setattr__(self, "wanted", OPERATORS[self.operator].words(other))

    def trace(self, facts: Facts) -> Trace:
        """Compares; a known absence (None) is no; a fact that is not known, or is of an unexpected type, is unknown.

        The same holds for the fact that it is compared with, if there is one.
        """
        return Trace.of(self._leaf(facts, self.wanted))

    def trace_of_contrary(self, facts: Facts) -> Trace:
        """Compares for the negation of this condition."""
        leaf = self._leaf(facts, self._unwanted)
        return Trace.of(leaf._replace(answer=~leaf.answer))

    @property
    def contrary(self) -> str:
        """The negation of this condition, in words."""
        return f"{self.name} ({self._unwanted})"

    @property
    def _unwanted(self) -> str:
        return OPERATORS[self.operator].contrary(self.operand.name if isinstance(self.operand, Fact) else self.operand)

    def __str__(self) -> str:
        return f"{self.name} ({self.wanted})" if self.words is None else self.words.holds

    def _leaf(self, facts: Facts, wanted: str) -> Leaf:
        got, operand = facts.fact(self.name), self.operand
        if isinstance(operand, Fact):
            operand = facts.fact(operand.name)
            wanted = f"{wanted} = {'nothing' if operand is None else operand}"
            if operand is None or (operand is UNKNOWN and got is not None):
                answer = Answer.NO if operand is None else Answer.UNKNOWN
                return Leaf(self.name, wanted, None if got is UNKNOWN else got, answer)
        if got is UNKNOWN:
            return Leaf(self.name, wanted, None, Answer.UNKNOWN)
        if got is None:
            return Leaf(self.name, wanted, None, Answer.NO)
        try:
            answer = Answer.YES if OPERATORS[self.operator].test(got, operand) else Answer.NO
        except (TypeError, ArithmeticError):
            answer = Answer.UNKNOWN
        return Leaf(self.name, wanted, got, answer)

    def facts(self) -> Iterator[str]:
        """The one that is compared, and the one that it is compared with."""
        yield self.name
        if isinstance(self.operand, Fact):
            yield self.operand.name

    def model_types(self) -> frozenset[str] | None:
        """The wanted model types, if that is the fact."""
        return frozenset(map(str, self.operand)) if (self.name, self.operator) == ("model.model_type", "one_of") else None


@dataclass(frozen=True, slots=True)
class Fact:
    """Names a fact; its methods make conditions on it."""

    name: str

    def one_of(self, *values: Any) -> Condition:
        """The fact equals one of the values."""
        return Condition(self.name, "one_of", values)

    def any_in(self, *values: Any) -> Condition:
        """The fact, a list, contains at least one of the values."""
        return Condition(self.name, "any_in", values)

    def above(self, bound: float | Fact) -> Condition:
        """The fact is a number greater than the bound, a number or another fact."""
        return Condition(self.name, "above", bound)

    def below(self, bound: float | Fact) -> Condition:
        """The fact is a number less than the bound, a number or another fact."""
        return Condition(self.name, "below", bound)

    def differs_from(self, other: Any) -> Condition:
        """The fact has a value, and it is not this one; a constant or another fact."""
        return Condition(self.name, "differs_from", other)

    def indivisible_by(self, divisor: int | Fact) -> Condition:
        """The fact is a number, and no multiple of the divisor, a number or another fact."""
        return Condition(self.name, "indivisible_by", divisor)

    def matches(self, pattern: str) -> Condition:
        """The fact, a text, contains a match of the regular expression; case does not count.

        Raises:
            DeclarationError: The pattern is no regular expression.
        """
        return Condition(self.name, "matches", pattern)

    def is_true(self) -> Condition:
        """The fact is true."""
        return Condition(self.name, "is_true")

    def is_set(self) -> Condition:
        """The fact has a value."""
        return Condition(self.name, "is_set")

    def is_not_empty(self) -> Condition:
        """The fact is a list with something in it."""
        return Condition(self.name, "is_not_empty")


@dataclass(frozen=True, slots=True)
class InRange(Match):
    """The installed version of a package lies in a range."""

    affected: Affected

    def trace(self, facts: Facts) -> Trace:
        """Compares the versions; a missing package or an unplaceable version gives unknown."""
        name = f"packages.{self.affected.package}"
        got = facts.fact(name)
        installed = None if got is UNKNOWN else got
        return Trace.of(Leaf(name, str(self.affected), installed, self.affected.answer(installed)))

    def facts(self) -> Iterator[str]:
        """The package's version."""
        yield f"packages.{self.affected.package}"

    def __str__(self) -> str:
        return f"packages.{self.affected.package} ({self.affected})"


def package(name: str, *, introduced: str | None = None, fixed: str | None = None) -> InRange:
    """The installed version of a package lies in the half-open range ``introduced <= v < fixed``."""
    return InRange(Affected(name, introduced=introduced, fixed=fixed))


def setting(slot: str) -> Fact:
    """Names the value that a slot has before quirks: what the user typed, or the configuration's default.

    Args:
        slot: The slot's name; ``engine.hf_overrides.rope_theta`` names a key inside of an engine argument that is a mapping.

    Raises:
        DeclarationError: No such slot.
    """
    if problem := problem_of_name(slot_around(slot)):
        raise DeclarationError(problem)
    return Fact(slot)


def typed(slot: str) -> Condition:
    """The user typed the slot's value.

    Raises:
        DeclarationError: No such slot. A key inside of an engine argument is none: ``setting(…).is_set()`` checks it.
    """
    if problem := problem_of_name(slot):
        raise DeclarationError(problem)
    return Fact(f"typed.{slot}").is_true()


def environment(variable: str) -> Fact:
    """Names an environment variable that the user set, in the shell or in the configuration's section ``env``.

    Raises:
        DeclarationError: No quirk may read it: it may hold a secret, or chooses the code that runs.
    """
    return setting(f"env.{variable}")


def model_type(*types: str) -> Condition:
    """``model_type`` in the checkpoint's ``config.json``, or the type of its architecture, is one of these."""
    return Fact("model.model_type").one_of(*types)


def model_name(pattern: str) -> Condition:
    """The model's name (hub id or folder name) contains a match of the regular expression; case does not count."""
    return Fact("model.name").matches(pattern)


def platform(*names: str) -> Condition:
    """The platform that the installed engine is built for is one of ``cpu``, ``cuda``, ``rocm``, ``xpu``."""
    return Fact("platform").one_of(*names)


def purpose(*names: str) -> Condition:
    """The run's purpose is one of ``rollout``, ``eval``, ``serve``."""
    return Fact("purpose").one_of(*names)
