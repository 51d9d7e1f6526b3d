"""Matchers: few, declarative, three-valued, and each able to say what it wanted and what it got.

They combine with ``&``, ``|`` and ``~``::

    match = model_type("gemma3", "gemma3_text") & setting("train.context_parallel_size").above(1)
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from quirks_core.errors import DeclarationError, nearest
from quirks_core.slots import SLOTS
from quirks_core.trace import Answer, Leaf, Trace, all_of, any_of
from quirks_core.versions import Affected


class Unknown:
    """The type of `UNKNOWN`: a fact that nobody could tell. None is a known value ("left open")."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()


class Facts(Protocol):
    """What a matcher sees of a `RunContext`."""

    def fact(self, name: str) -> Any:
        """Returns the fact, or `UNKNOWN`."""


class Match(ABC):
    """A condition on facts."""

    __slots__ = ()

    @abstractmethod
    def trace(self, facts: Facts) -> Trace:
        """Evaluates the condition; no side effects."""

    def __and__(self, other: Match) -> Match:
        return All((self, other))

    def __or__(self, other: Match) -> Match:
        return AnyOf((self, other))

    def __invert__(self) -> Match:
        return Not(self)


@dataclass(frozen=True, slots=True)
class All(Match):
    """Every part holds."""

    parts: tuple[Match, ...] = ()

    def trace(self, facts: Facts) -> Trace:
        """Evaluates every part, so that the trace shows them all."""
        return all_of(part.trace(facts) for part in self.parts)


@dataclass(frozen=True, slots=True)
class AnyOf(Match):
    """At least one part holds."""

    parts: tuple[Match, ...]

    def trace(self, facts: Facts) -> Trace:
        """Evaluates every part, so that the trace shows them all."""
        return any_of(part.trace(facts) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Not(Match):
    """The part does not hold; unknown stays unknown."""

    part: Match

    def trace(self, facts: Facts) -> Trace:
        """Evaluates the part and inverts its answer."""
        return self.part.trace(facts).inverted()


@dataclass(frozen=True, slots=True)
class Condition(Match):
    """A single comparison of one fact.

    Attributes:
        name: The fact's dotted name.
        wanted: The wanted value in words, for the trace.
        test: A pure function of the fact's value.
    """

    name: str
    wanted: str
    test: Callable[[Any], bool]

    def trace(self, facts: Facts) -> Trace:
        """Compares; a known absence (None) is no, a fact that nobody can tell, or of an unexpected type, is unknown."""
        got = facts.fact(self.name)
        if got is UNKNOWN:
            return Trace.of(Leaf(self.name, self.wanted, None, Answer.UNKNOWN))
        if got is None:
            return Trace.of(Leaf(self.name, self.wanted, None, Answer.NO))
        try:
            answer = Answer.YES if self.test(got) else Answer.NO
        except TypeError:
            answer = Answer.UNKNOWN
        return Trace.of(Leaf(self.name, self.wanted, got, answer))


@dataclass(frozen=True, slots=True)
class Fact:
    """Names a fact; its methods make conditions on it."""

    name: str

    def one_of(self, *values: Any) -> Condition:
        """The fact equals one of the values."""
        words = " or ".join(str(value) for value in values)
        return Condition(self.name, words, lambda got: got in values)

    def any_in(self, *values: Any) -> Condition:
        """The fact, a list, contains at least one of the values."""
        words = "any of " + ", ".join(str(value) for value in values)
        return Condition(self.name, words, lambda got: any(value in got for value in values))

    def above(self, bound: float) -> Condition:
        """The fact is a number greater than the bound."""
        return Condition(self.name, f"> {bound}", lambda got: bool(got > bound))

    def below(self, bound: float) -> Condition:
        """The fact is a number less than the bound."""
        return Condition(self.name, f"< {bound}", lambda got: bool(got < bound))

    def matches(self, pattern: str) -> Condition:
        """The fact, a text, contains a match of the regular expression; case does not count."""
        compiled = re.compile(pattern, re.IGNORECASE)
        return Condition(self.name, f"text matching /{pattern}/", lambda got: compiled.search(got) is not None)

    def is_true(self) -> Condition:
        """The fact is true."""
        return Condition(self.name, "true", bool)

    def is_set(self) -> Condition:
        """The fact has a value."""
        return Condition(self.name, "a value", lambda _: True)

    def is_not_empty(self) -> Condition:
        """The fact is a list with something in it."""
        return Condition(self.name, "something", bool)


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


def package(name: str, *, introduced: str | None = None, fixed: str | None = None) -> InRange:
    """The installed version of a package lies in the half-open range ``introduced <= v < fixed``."""
    return InRange(Affected(name, introduced=introduced, fixed=fixed))


def setting(slot: str) -> Fact:
    """Names the value that a slot has before quirks: what the user typed, or the configuration's default.

    Raises:
        DeclarationError: No such slot.
    """
    if slot not in SLOTS:
        raise DeclarationError(f"unknown slot {slot!r}{nearest(slot, SLOTS)}")
    return Fact(slot)


def typed(slot: str) -> Condition:
    """The user typed the slot's value."""
    return Fact(f"typed.{setting(slot).name}").is_true()


def environment(variable: str) -> Fact:
    """Names an environment variable that the user set, in the shell or in the configuration's ``env`` section."""
    return Fact(f"env.{variable}")


def model_type(*types: str) -> Condition:
    """``model_type`` in the checkpoint's ``config.json`` is one of these."""
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
