"""What an upgrade changes for a run, one finding each, and the verdict that follows from all of them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum, auto

from quirks_core.base.record import Record
from quirks_core.reporting.finding import Finding
from quirks_core.upgrade.changes import Change


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
        name: The distribution and version, or a path.
        version: Its version; None if its source does not state it.
        notes: What is to be known of it.
    """

    name: str
    version: str | None
    notes: tuple[str, ...] = ()


class Comparison(Record):
    """What is found between two releases.

    Attributes:
        before: The release that is used.
        after: The release in question.
        findings: What changes.
    """

    before: Side
    after: Side
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """What the gravest finding means."""
        return verdict_of(self.findings)

    def of(self, level: Level) -> tuple[Finding, ...]:
        """Returns the findings of one level."""
        return tuple(finding for finding in self.findings if finding.level is level)


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
