"""What an upgrade changes for a run, one finding each, and the verdict that follows from all of them."""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from enum import StrEnum, auto
from typing import Any

from quirks_core.base.record import Record
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.page import Page
from quirks_core.upgrade.changes import Change

#: Lines of a difference that a page shows; the rest is in JSON.
MOST_LINES = 24


class Level(StrEnum):
    """What a finding means for the upgrade, the gravest first."""

    STOP = auto()  #: the run does not start, or is wrong, and nothing that could be pasted mends it
    UNKNOWN = auto()  #: it is not decided
    CHANGE = auto()  #: the run needs a change, which the finding gives
    NOTE = auto()  #: it changes something, and nothing has to be done


class Section(StrEnum):
    """What a finding is about, in the order of the report."""

    QUIRKS = auto()
    PATCHES = auto()
    SEAMS = auto()
    ARGUMENTS = auto()
    VARIABLES = auto()
    MODEL = auto()
    REQUIREMENTS = auto()
    TRAINERS = auto()

    def finding(
        self, level: Level, subject: str, message: str, lines: Iterable[str] = (), change: Change | None = None
    ) -> Finding:
        """Returns a finding of this section."""
        return Finding(level, subject, message, tuple(lines), section=self, change=change)


#: What the sections are called.
TITLES = {
    Section.QUIRKS: "quirks",
    Section.PATCHES: "patches",
    Section.SEAMS: "what model-quirks rests on",
    Section.ARGUMENTS: "engine arguments",
    Section.VARIABLES: "environment variables",
    Section.MODEL: "the model",
    Section.REQUIREMENTS: "requirements",
    Section.TRAINERS: "trainers and other packages",
}


class Verdict(StrEnum):
    """Whether to upgrade."""

    GO = "go"
    CHANGES = "go, with these changes"
    STOP = "stop"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> int:
        """What the command line returns for it."""
        return list(Verdict).index(self)


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """Returns what findings mean together: what stops the run decides, then what is unknown, then what has to be changed."""
    levels = {finding.level for finding in findings}
    order = (Level.STOP, Verdict.STOP), (Level.UNKNOWN, Verdict.UNKNOWN), (Level.CHANGE, Verdict.CHANGES)
    return next((verdict for level, verdict in order if level in levels), Verdict.GO)


class Side(Record):
    """A release of vLLM as a report names it.

    Attributes:
        name: How it is shown: ``vllm 0.33.0``, or a path.
        version: Its version; None if its source does not state it.
        notes: What is to be known of it.
    """

    name: str
    version: str | None
    notes: tuple[str, ...] = ()


class Compared(Record):
    """Two releases, and what is found between them.

    Attributes:
        before: The release that is used.
        after: The release in question.
    """

    before: Side
    after: Side

    @property
    def sides(self) -> str:
        """Both releases."""
        return f"{self.before.name} → {self.after.name}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of them."""
        return (*self.before.notes, *self.after.notes)


class Comparison(Compared):
    """What is found for one run, or for a package of patches.

    Attributes:
        findings: What changes.
    """

    findings: tuple[Finding, ...]

    @abstractmethod
    def page(self) -> Page:
        """Returns it for a person."""

    @property
    def verdict(self) -> Verdict:
        """What the gravest finding means."""
        return verdict_of(self.findings)

    def of(self, level: Level) -> tuple[Finding, ...]:
        """Returns the findings of one level."""
        return tuple(finding for finding in self.findings if finding.level is level)

    def to_json(self) -> dict[str, Any]:
        """Returns it for a program."""
        return {"verdict": self.verdict, **self.model_dump(mode="json", exclude={"findings": {"__all__": {"change"}}})}


def changed_lines(old: str | None, new: str | None) -> tuple[str, ...]:
    """Returns the lines that differ between two source texts, as in a unified diff."""
    lines = difflib.unified_diff((old or "").splitlines(), (new or "").splitlines(), lineterm="", n=1)
    return tuple(lines)[2:]


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Returns findings by level."""
    order: list[str] = list(Level)
    return sorted(findings, key=lambda item: order.index(item.level))


class Report(Comparison):
    """What an upgrade changes for one run; its findings are in the order of the sections.

    Attributes:
        model: Name of the model.
        model_type: Its ``model_type``.
        purpose: Purpose of the run.
        digests: Digests of the plan on both releases.
        rewritten: The run with every change: a command line, or a configuration in JSON; empty if the release refuses it.
    """

    model: str
    model_type: str | None
    purpose: str
    digests: tuple[str, str]
    rewritten: str = ""

    def page(self) -> Page:
        """Returns the verdict with what is to be done, and the findings by section."""
        found = [(section, [one for one in self.findings if one.section == section]) for section in Section]
        return Page(
            head=f"{self.sides}: {self.model} ({self.model_type or 'no model_type'}), purpose {self.purpose}",
            parts=[(TITLES[section], gravest_first(items)) for section, items in found if items],
            verdict=Finding(self.verdict, "", self._because()),
            notes=self.notes,
            paste=list(self._pasted()),
            rewritten=self.rewritten,
        )

    def _because(self) -> str:
        unknown = len(self.of(Level.UNKNOWN))
        count = f"{unknown} {'thing is' if unknown == 1 else 'things are'} not decided, see below" if unknown else ""
        match self.verdict:
            case Verdict.UNKNOWN:
                return f": {count}{', and with these changes:' if self.of(Level.CHANGE) else ''}"
            case Verdict.GO:
                return ""
            case verdict:
                return f"{', because' if verdict is Verdict.STOP else ''}{f' ({count})' if count else ''}:"

    def _pasted(self) -> Iterator[str]:
        """What stops the upgrade, and what is to be changed."""
        for item in self.of(Level.STOP):
            yield f"{item.subject}: {item.message}"
        # One line may be the change for several keys of one mapping.
        yield from dict.fromkeys(item.paste or f"{item.subject}: {item.message}" for item in self.of(Level.CHANGE))
