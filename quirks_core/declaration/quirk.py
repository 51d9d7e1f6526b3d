"""The declaration of a quirk: one frozen record."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum, auto
from functools import cached_property
from types import FrameType
from typing import Any

from quirks_core.base import json_values
from quirks_core.base.errors import DeclarationError, UsageError, problem_of_text, shown
from quirks_core.declaration.adjustments import Adjustment, Advise, Default, Patch, Refuse, Require
from quirks_core.declaration.examples import Example
from quirks_core.declaration.flags import Kind, ModelFlag, flag_name, folder_of
from quirks_core.declaration.match import All, InRange, Match
from quirks_core.declaration.probes import Probe
from quirks_core.declaration.versions import OLDEST, Affected, parse_version
from quirks_core.facts.fact_table import always_known

#: Name of the paired run's function in the module of a declaration.
SCENARIO = "scenario"


class Severity(StrEnum):
    """What happens in a run without the quirk."""

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
    """Where the problem was reported or described: an address, or ``owner/repository#1`` or ``…/pull/1`` on GitHub."""
    return Reference("report", _address(url))


def fix(url: str) -> Reference:
    """The change that ends the problem: an address, or ``owner/repository/pull/1`` on GitHub."""
    return Reference("fix", _address(url))


def _address(name: str) -> str:
    return name if "://" in name else f"https://github.com/{name.replace('#', '/issues/')}"


@dataclass(frozen=True, slots=True)
class PairedRun:
    """Evidence from a scenario that ``quirks prove`` runs on the real engine, with and without the quirk.

    An ``async def scenario(lab)`` in the module that declares the quirk is its paired run and need not be named.

    Attributes:
        scenario: ``package.module:function``, an ``async def scenario(lab) -> Outcome`` (see `worker.lab.kit.lab`).
    """

    scenario: str

    def __post_init__(self) -> None:
        module, colon, function = str(self.scenario).partition(":")
        if not (module and colon and function):
            raise DeclarationError(f"PairedRun: {self.scenario!r} is not of the form 'package.module:function'")


@dataclass(frozen=True, slots=True)
class Location:
    """Where a quirk is declared.

    Attributes:
        file: Starting at the top-level package, so that it reads the same on every machine.
        line: Counted from 1.
        module: Dotted name of the module.
    """

    file: str
    line: int
    module: str = ""

    @property
    def is_built_in(self) -> bool:
        """The module is one of ours."""
        return self.module.partition(".")[0] == "quirks_plugins"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


_ID = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*(?:/[a-z0-9]+(?:[._-][a-z0-9]+)*)?")
#: Names that switch more than one quirk.
_RESERVED = frozenset({"all", "third-party", *ModelFlag})


def problem_of_id(text: str) -> str | None:
    """Returns why no quirk can have an id; None if one can."""
    if not _ID.fullmatch(text):
        return "the id must be lower-case words joined by dashes, at most one slash"
    return "the id is a word of the switches: choose another" if text in _RESERVED else None


@dataclass(frozen=True, init=False)
class Quirk:
    """A workaround, rule or feature for one model, engine version or configuration.

    Attributes:
        id: Stable name, never reused: ``words-with-dashes``; a third party's may be ``distribution/words``.
        title: What goes wrong, and for which models, in one sentence.
        flag: The behaviour it adjusts; if left out, the folder of its file is named after it.
        kind: Workaround, rule or feature.
        match: When it concerns a run.
        adjustments: What it requests.
        affected: The version ranges that have the problem. Ranges of one package are alternatives; different packages must
            all be affected. Empty: every version.
        severity: What happens without it.
        references: Links to reports and fixes; at least one.
        evidence: Probes and paired runs, in addition to a ``scenario`` in the module.
        examples: Runs with the verdict and the outcome that each must get; `quirks_core.testing.contract` checks them.
        supersedes: Ids of the quirks that this one replaces in the runs where it is active.
        cost: The cost while it is active, measured if possible.
        crash: The error, as a regular expression, with which the engine ends without a quirk of severity ``CRASH``. Only
            with this error does an engine that dies, or does not start, count as evidence.
        location: File and line of the declaration; taken from the caller, and ignored in comparisons.
    """

    id: str
    title: str
    flag: str
    kind: Kind
    match: Match
    adjustments: tuple[Adjustment, ...]
    affected: tuple[Affected, ...]
    severity: Severity
    references: tuple[Reference, ...]
    evidence: tuple[Probe | PairedRun, ...]
    examples: tuple[Example, ...]
    supersedes: tuple[str, ...]
    cost: str
    crash: str
    location: Location = field(compare=False, repr=False)

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - the usual word for it
        title: str,
        match: Match,
        adjustments: Adjustment | Sequence[Adjustment],
        severity: Severity,
        references: Reference | Sequence[Reference],
        flag: str = "",
        affected: Affected | Sequence[Affected] = (),
        evidence: Probe | PairedRun | Sequence[Probe | PairedRun] = (),
        examples: Example | Sequence[Example] = (),
        kind: Kind = Kind.WORKAROUND,
        supersedes: str | Sequence[str] = (),
        cost: str = "",
        crash: str = "",
    ) -> None:
        """Checks the declaration; a sequence of one item may be given as the item.

        Raises:
            DeclarationError: The declaration is invalid; the message lists all problems.
        """
        location = _location(sys._getframe(1))
        given = {**locals(), "flag": flag or folder_of(location.module)}
        for one in fields(self):
            value = given[one.name]
            object.__setattr__(self, one.name, _as_tuple(value) if one.name in _PARTS else value)
        if problems := list(self._problems()):
            raise DeclarationError(f"quirk {shown(id)}: " + "; ".join(problems))
        object.__setattr__(self, "flag", flag_name(self.flag))

    @property
    def can_be_unknown(self) -> bool:
        """Some run leaves open whether the quirk concerns it: it reads a fact that may be missing."""
        return bool(self.affected) or not all(always_known(name) for name in self.match.facts())

    @cached_property
    def fact_names(self) -> frozenset[str]:
        """The names of the facts, packages and variables that the quirk reads or adjusts."""
        conditions = [self.match, *(item.when for item in self.adjustments if item.when is not None)]
        facts = (name for condition in conditions for name in condition.facts())
        slots = (item.slot for item in self.adjustments if isinstance(item, Default | Require))
        return frozenset((*facts, *slots, *(f"packages.{item.package}" for item in self.affected)))

    @property
    def depends_on_cpu(self) -> bool:
        """The quirk depends on features of the CPU: a proof on one kind of CPU does not hold for another."""
        return any(name.startswith("platform.cpu.") for name in self.fact_names)

    @property
    def paired_runs(self) -> tuple[PairedRun, ...]:
        """Its paired runs: those that it names, otherwise the ``scenario`` of its module."""
        named = tuple(item for item in self.evidence if isinstance(item, PairedRun))
        module = sys.modules.get(self.location.module)
        if named or not callable(getattr(module, "__dict__", {}).get(SCENARIO)):
            return named
        return (PairedRun(f"{self.location.module}:{SCENARIO}"),)

    @property
    def ranges(self) -> tuple[Affected, ...]:
        """The ranges of versions outside of which it does nothing: `affected`, and those that its match always requires."""
        parts = self.match.parts if isinstance(self.match, All) else (self.match,)
        found = list(self.affected)
        for wanted in (part.affected for part in parts if isinstance(part, InRange)):
            if any(item.package == wanted.package for item in found):
                found = [both for item in found if (both := item.within(wanted)) is not None]
            else:
                found.append(wanted)
        return tuple(found)

    def is_examined(self, package: str, text: str) -> bool:
        """Returns whether anything is known about a version of a package; if not, the quirk may concern it all the same.

        Of built-in quirks, versions before the oldest that was examined (`OLDEST`) are known if a range begins at another
        version or ends among them, or if the quirk is a rule or a feature that rests on no source of the package.
        """
        oldest, version = parse_version(OLDEST.get(package, "")), parse_version(text)
        if not self.location.is_built_in:
            return True  # a third party's range is its own word
        if oldest is None or version is None or version >= oldest:
            return True
        ranges = [item for item in self.ranges if item.package == package]
        if not ranges:
            return self.kind is not Kind.WORKAROUND and all(probe.package != package for probe in self.probes)
        return any((low and low != oldest) or (high and high <= oldest) for low, high in (item.bounds for item in ranges))

    @property
    def versions(self) -> str:
        """The versions that it concerns, in words."""
        ranges = [f"{item.package} {item}" for item in self.ranges]
        for package, oldest in OLDEST.items():
            if not self.is_examined(package, "0.0.1"):
                known = f"examined from {oldest} on"
                mine = next((n for n, item in enumerate(self.ranges) if item.package == package), None)
                ranges = [f"{text} ({known})" if n == mine else text for n, text in enumerate(ranges)]
                ranges += [f"{package}: {known}"] if mine is None else []
        return "; ".join(ranges) or "every version"

    @property
    def probes(self) -> tuple[Probe, ...]:
        """The probes among its evidence."""
        return tuple(item for item in self.evidence if isinstance(item, Probe))

    @cached_property
    def model_types(self) -> frozenset[str] | None:
        """The model types that the quirk can concern; None if it may concern any model."""
        return self.match.model_types()

    def _problems(self) -> Iterator[str]:
        if problem := problem_of_id(str(self.id)):
            yield problem
        for name in ("id", "title", "cost", "crash"):
            if problem := problem_of_text(name, getattr(self, name)):
                yield problem
        if not self.title:
            yield "the title is empty"
        try:
            flag_name(str(self.flag))
        except UsageError as error:
            yield str(error)
        if not isinstance(self.kind, Kind):
            yield f"{shown(self.kind)} is not a kind: Kind.WORKAROUND, Kind.RULE or Kind.FEATURE"
        if not isinstance(self.match, Match):
            yield f"match must be made by quirks_core.declaration.match, not {shown(self.match)}"
        if not self.adjustments:
            yield "no adjustments"
        if not self.references:
            yield "no references: say where the problem is reported"
        if not isinstance(self.severity, Severity):
            yield f"{shown(self.severity)} is not a severity"
        elif self.crash and self.severity is not Severity.CRASH:
            yield f"it names the error of a crash, but its severity is {self.severity}"
        try:
            re.compile(self.crash if isinstance(self.crash, str) else "")
        except re.error as error:
            yield f"crash is no regular expression: {error}"
        for name, kinds in _PARTS.items():
            for item in getattr(self, name):
                if not isinstance(item, kinds):
                    yield f"{shown(item)} in {name} is of the wrong type"
        ranges = [item for item in self.affected if isinstance(item, Affected)]
        for one, other in itertools.combinations(ranges, 2):
            if one.overlaps(other):
                yield f"the affected ranges {one.package} {one} and {other} overlap: write one range"
        for item in self.supersedes:
            if isinstance(item, str) and not _ID.fullmatch(item):
                yield f"{shown(item)} in supersedes is no id"
        for item in self.examples:
            values = [dict(item.config), dict(item.extra), dict(item.gives or {})] if isinstance(item, Example) else []
            if why := json_values.problem(values):
                yield f"an example holds what {why}"


#: The types of what may be several.
_PARTS: Mapping[str, Any] = {
    "adjustments": (Default, Require, Refuse, Advise, Patch),
    "affected": Affected,
    "references": Reference,
    "evidence": (PairedRun, Probe),
    "examples": Example,
    "supersedes": str,
}


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _location(caller: FrameType) -> Location:
    module = str(caller.f_globals.get("__name__", ""))
    return Location(from_package(caller.f_code.co_filename, module), caller.f_lineno, module)


def from_package(file: str, module: str) -> str:
    """Shortens a path to start at its top-level package or module."""
    top = f"{os.sep}{module.partition('.')[0]}"
    start = max(file.rfind(f"{top}{os.sep}"), file.rfind(f"{top}.py"))
    return file[start + 1 :]
