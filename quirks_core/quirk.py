"""The declaration of a quirk: one frozen record that reads aloud."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from functools import cached_property

from quirks_core.adjustments import Adjustment, Advise, Default, Patch, Refuse, Require
from quirks_core.context import always_known
from quirks_core.errors import DeclarationError, UsageError, problem_of_text, shown
from quirks_core.examples import Example
from quirks_core.flags import ModelFlag, flag_name
from quirks_core.match import Match
from quirks_core.probes import Probe
from quirks_core.versions import Affected


class Severity(StrEnum):
    """What happens to a user whom the quirk does not protect."""

    CRASH = auto()
    WRONG_OUTPUT = auto()
    SLOW = auto()
    NOISE = auto()


@dataclass(frozen=True, slots=True)
class Reference:
    """A link, typed in OSV's words: ``report``, ``fix`` or ``evidence``."""

    type: str
    url: str

    def __post_init__(self) -> None:
        for name in ("type", "url"):
            if problem := problem_of_text(name, getattr(self, name)):
                raise DeclarationError(f"Reference: {problem}")


def report(url: str) -> Reference:
    """Where the problem was reported or described."""
    return Reference("report", url)


def fix(url: str) -> Reference:
    """The change that ends the problem."""
    return Reference("fix", url)


@dataclass(frozen=True, slots=True)
class PairedRun:
    """Evidence by running: the same scenario on the real engine with and without the quirk; ``quirks prove`` runs it.

    Attributes:
        scenario: ``package.module:function``, an ``async def scenario(lab) -> Outcome`` (see `quirks_core.testing.lab`).
        observed: What was seen, with the engine version it was seen on.
    """

    scenario: str
    observed: str

    def __post_init__(self) -> None:
        module, colon, function = str(self.scenario).partition(":")
        if not (module and colon and function):
            raise DeclarationError(f"PairedRun: {self.scenario!r} is not of the form 'package.module:function'")
        if problem := problem_of_text("observed", self.observed):
            raise DeclarationError(f"PairedRun: {problem}")


@dataclass(frozen=True, slots=True)
class Location:
    """Where a quirk is declared."""

    file: str
    line: int

    def __post_init__(self) -> None:
        if problem := problem_of_text("file", self.file):
            raise DeclarationError(f"Location: {problem}")
        if type(self.line) is not int:
            raise DeclarationError(f"Location: line must be a number, not {shown(self.line)}")

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


_ID = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*(?:/[a-z0-9]+(?:[._-][a-z0-9]+)*)?")


#: More facts than any match asks for; one of somebody's own kind may never stop naming them.
_MOST_FACTS = 10_000

#: Names that switch more than one quirk.
_RESERVED = frozenset({"all", "third-party", *ModelFlag})


@dataclass(frozen=True, kw_only=True)
class Quirk:
    """A workaround or correctness setting for one model, engine version or configuration.

    Attributes:
        id: Stable name, never reused: ``words-with-dashes``; a third party's may be ``distribution/words``.
        title: What goes wrong, for whom, in one sentence.
        flag: The behaviour it adjusts.
        match: When it concerns a run.
        adjustments: What it asks for.
        affected: The version ranges that have the problem. Ranges of one package are alternatives; different packages must
            all be affected. Empty: every version.
        severity: What happens without it.
        references: Where to read on; at least one.
        evidence: What shows that the problem exists.
        examples: Runs with the verdict that each must get; `quirks_core.testing.contract` checks them.
        supersedes: Ids of the quirks that this one replaces, in every run in which it is not switched off itself.
        cost: What it costs while active, measured where it can be.
        since: The release of its distribution that introduced it.
        location: File and line of the declaration; taken from the caller, and no part of equality.
    """

    id: str
    title: str
    flag: str
    match: Match
    adjustments: tuple[Adjustment, ...]
    affected: tuple[Affected, ...] = ()
    severity: Severity
    references: tuple[Reference, ...]
    evidence: tuple[Probe | PairedRun, ...] = ()
    examples: tuple[Example, ...] = ()
    supersedes: tuple[str, ...] = ()
    cost: str = ""
    since: str = ""
    location: Location = field(default=Location("<unknown>", 0), compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("adjustments", "affected", "references", "evidence", "examples", "supersedes"):
            object.__setattr__(self, name, _as_tuple(getattr(self, name)))
        if problems := list(self._problems()):
            raise DeclarationError(f"quirk {shown(self.id)}: " + "; ".join(problems))
        object.__setattr__(self, "flag", flag_name(self.flag))
        if self.location.line == 0:
            object.__setattr__(self, "location", _caller())

    def check(self) -> None:
        """Makes sure that the declaration is sound; the registry asks again, as Python can change any object.

        Raises:
            DeclarationError: It is not; the message lists everything.
        """
        if problems := list(self._problems()) or list(self._changed()):
            raise DeclarationError(f"quirk {shown(self.id)}: " + "; ".join(problems))

    @property
    def can_be_unknown(self) -> bool:
        """Some run leaves open whether the quirk concerns it: it asks for a fact that may be missing."""
        return bool(self.affected) or not all(always_known(name) for name in self.match.facts())

    @property
    def packages(self) -> frozenset[str]:
        """The packages whose versions the quirk asks for."""
        names = itertools.islice(self.match.facts(), _MOST_FACTS)
        named = {name.removeprefix("packages.") for name in names if name.startswith("packages.")}
        return frozenset(named | {item.package for item in self.affected})

    @cached_property
    def model_types(self) -> frozenset[str] | None:
        """The model types that the quirk is bound to; None if it may concern any model."""
        return self.match.model_types()

    def _problems(self) -> Iterable[str]:
        if not _ID.fullmatch(str(self.id)):
            yield "the id must be lower-case words joined by dashes, at most one slash"
        elif self.id in _RESERVED:
            yield "the id is a word of the switches: choose another"
        for name in ("id", "title", "cost", "since"):
            if problem := problem_of_text(name, getattr(self, name)):
                yield problem
        if not self.title:
            yield "the title is empty"
        try:
            flag_name(str(self.flag))
        except UsageError as error:
            yield str(error)
        if not isinstance(self.match, Match):
            yield f"match must be made by quirks_core.match, not {type(self.match).__name__}"
        if not self.adjustments:
            yield "no adjustments"
        for adjustment in self.adjustments:
            if type(adjustment) not in _ADJUSTMENTS:
                yield f"{shown(adjustment)} is not an adjustment"
        if not self.references:
            yield "no references: say where the problem is reported"
        if not isinstance(self.severity, Severity):
            yield f"{shown(self.severity)} is not a severity"
        ranges = [item for item in self.affected if isinstance(item, Affected)]
        for one, other in itertools.combinations(ranges, 2):
            if one.overlaps(other):
                yield f"the affected ranges {one.package} {one} and {other} overlap: write one range"
        if type(self.location) is not Location:
            yield f"{shown(self.location)} is not a location"
        for name, kind in _PARTS.items():
            for item in getattr(self, name):
                if type(item) is not kind and not (name == "evidence" and isinstance(item, Probe)):
                    yield f"{shown(item)} in {name} is of the wrong type"
        for item in self.supersedes:
            if type(item) is str and not _ID.fullmatch(item):
                yield f"{shown(item)} in supersedes is no id"

    def _changed(self) -> Iterable[str]:
        """What the parts refused when they were made, and hold now."""
        for part in (*self.adjustments, *self.affected, *self.references, *self.evidence, *self.examples, self.location):
            if type(part) in _OWN_KINDS:
                try:
                    part.__post_init__()  # type: ignore[union-attr]  # of our own records all have it
                except DeclarationError as error:
                    yield str(error)


#: Our own records, and no kinds of somebody's own, which could do anything wherever they are read.
_ADJUSTMENTS = (Default, Require, Refuse, Advise, Patch)
_PARTS: Mapping[str, type] = {
    "affected": Affected,
    "references": Reference,
    "evidence": PairedRun,
    "examples": Example,
    "supersedes": str,
}
_OWN_KINDS = (*_ADJUSTMENTS, Affected, Reference, PairedRun, Example, Location)


def _as_tuple(value: object) -> tuple[object, ...]:
    """Lets an author write a single item or a list where a tuple is kept."""
    if isinstance(value, list | tuple):
        return tuple(value)
    return (value,)


def _caller() -> Location:
    """Finds the first frame outside this module and the dataclass machinery (whose code has no file)."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith("<"):
            return Location(_from_package(file, frame.f_globals.get("__name__", "")), frame.f_lineno)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return Location("<unknown>", 0)


def _from_package(file: str, module: str) -> str:
    """Shortens a path to start at its top-level package, so that it reads the same on every machine."""
    package = f"{os.sep}{module.partition('.')[0]}{os.sep}"
    return file[file.rindex(package) + 1 :] if package in file else file
