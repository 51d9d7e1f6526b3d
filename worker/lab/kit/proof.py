"""The records of a proof: runs, what each piece of evidence says, what follows for a quirk, and the report of many."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from datetime import date
from enum import StrEnum
from importlib.metadata import version

from quirks_core.base.errors import shortened
from quirks_core.base.record import Record
from quirks_core.facts.packages import cpu_features, cpu_kind, installed_platform, installed_versions
from quirks_core.plan.records import State
from worker.lab.kit.evidence_table import PACKAGES, Proved
from worker.lab.kit.lab import Outcome

#: Where this machine keeps its packages: an error names it, and what is passed on does not.
_PACKAGES_FOLDER = re.compile(r"(?:/[^/\s'\"()]+)+/(?=site-packages/)")
#: Characters of what a run saw that the table of evidence keeps.
_SEEN = 40


def without_folders(text: str) -> str:
    """Leaves out where this machine keeps its packages."""
    return _PACKAGES_FOLDER.sub("", text)


class Conclusion(StrEnum):
    """What the evidence says about a quirk on this installation."""

    NEEDED = "NEEDED"
    NOT_NEEDED = "NOT NEEDED"
    HOLDS = "HOLDS"
    DOES_NOT_HOLD = "DOES NOT HOLD"
    INCONCLUSIVE = "INCONCLUSIVE"


class Kind(StrEnum):
    """What a piece of evidence is."""

    PAIRED_RUN = "paired run"
    STATIC_PROBE = "static probe"


class Run(Record):
    """One run of a scenario."""

    outcome: Outcome | None = None  #: what the scenario saw; None if it did not get that far
    error: str = ""  #: why there is no outcome
    crash: str = ""  #: the signal by which the process died of its own fault (``SIGSEGV``), if it did
    states: tuple[State, ...] = ()  #: what became of the quirk in each plan that the scenario made
    runner: str = ""  #: the model runners that these plans were made for; empty if that is unknown
    graphs: bool = False  #: an engine had CUDA graphs; False where all were eager, as before it was recorded
    seconds: float = 0.0  #: how long it took

    @property
    def passed(self) -> bool:
        """The scenario saw what it should."""
        return self.outcome is not None and self.outcome.passed

    def __str__(self) -> str:
        if self.outcome is None:
            return self.error
        return f"{'passed' if self.passed else 'failed'}: {self.outcome.got}"


class Finding(Record):
    """What one piece of evidence says."""

    kind: Kind  #: what it is
    evidence: str  #: the scenario's name, or the probe in words
    conclusion: Conclusion  #: what it says
    reason: str  #: why, in one sentence
    with_quirk: Run | None = None  #: the run with the quirk forced; None of a probe
    without_quirk: Run | None = None  #: the run with the quirk disabled; None also where the other one came to nothing

    @property
    def measure(self) -> str:
        """What was looked at, and what it should be."""
        outcomes = [run.outcome for run in (self.with_quirk, self.without_quirk) if run and run.outcome]
        return f"{outcomes[0].measure} (expected: {outcomes[0].expected})" if outcomes else self.evidence

    @property
    def seen(self) -> str:
        """What its runs saw, with and without the quirk, on one line; empty of a probe."""
        runs = [(run.outcome, text) for run, text in ((self.with_quirk, "with"), (self.without_quirk, "without")) if run]
        saw = [
            (outcome.measure, f"{shortened(without_folders(outcome.got), _SEEN)} {text} it")
            for outcome, text in runs
            if outcome
        ]
        return f"{saw[0][0]}: {', '.join(text for _, text in saw)}" if saw else ""


class Proof(Record):
    """What all the evidence of a quirk says together."""

    id: str  #: the quirk's id
    title: str  #: its title
    distribution: str  #: where it comes from
    version: str  #: version of that distribution
    conclusion: Conclusion  #: what follows
    reason: str  #: why, in one sentence
    disagreement: bool = False  #: paired runs and probes say the opposite of each other; what was run counts
    findings: tuple[Finding, ...] = ()  #: what each piece of evidence says
    date: date  #: the day, UTC
    depends: dict[str, str]  #: what the evidence depends on (`worker.lab.kit.evidence.dependencies`)

    @property
    def runner(self) -> str:
        """The model runners that the paired runs used; empty if nothing was run, or that was not recorded."""
        runs = [run for item in self.findings for run in (item.with_quirk, item.without_quirk) if run and run.runner]
        return ", ".join(sorted({name for run in runs for name in run.runner.split(", ")}))

    @property
    def graphs(self) -> bool:
        """The paired runs had CUDA graphs."""
        return any(run.graphs for item in self.findings for run in (item.with_quirk, item.without_quirk) if run)

    @property
    def calls_for_action(self) -> bool:
        """The quirk is not needed, its evidence contradicts itself, or a paired run failed to decide."""
        undecided = [item for item in self.findings if item.conclusion is Conclusion.INCONCLUSIVE]
        return (
            self.disagreement
            or self.conclusion in (Conclusion.NOT_NEEDED, Conclusion.DOES_NOT_HOLD)
            or any(item.kind is Kind.PAIRED_RUN for item in undecided)
        )

    @property
    def proved(self) -> Proved | None:
        """What the table of evidence keeps of the proof; None if there was nothing to run."""
        if not self.findings:
            return None
        decided = [item for item in self.findings if item.conclusion is not Conclusion.INCONCLUSIVE]
        seen = (item.seen for item in decided if item.conclusion is self.conclusion and item.seen)
        undecided = [item for item in self.findings if item.kind is Kind.PAIRED_RUN and item not in decided]
        doubt = self.reason if self.disagreement else undecided[0].reason if undecided else ""
        return Proved(
            platform=self.depends.get("platform", ""),
            cpu=self.depends.get("cpu", ""),
            device=self.depends.get("device", ""),
            runner=self.runner,
            graphs=self.graphs,
            **{name: self.depends[name] for name in PACKAGES if name in self.depends},
            by=Kind.PAIRED_RUN if Kind.PAIRED_RUN in {item.kind for item in decided or self.findings} else Kind.STATIC_PROBE,
            conclusion=self.conclusion,
            date=self.date,
            digest=self.depends.get("code", ""),
            seen=next(seen, ""),
            doubt=shortened(without_folders(doubt), 3 * _SEEN),
        )


class Report(Record):
    """Proofs, with when and where they were made."""

    versions: dict[str, str]  #: versions by package, Python's among them
    platform: str | None  #: the engine's platform; None if it cannot be told
    machine: str  #: operating system, processor architecture and kind of CPU
    proofs: tuple[Proof, ...]  #: one per quirk

    @classmethod
    def of(cls, proofs: Iterable[Proof]) -> Report:
        """Puts proofs together with the versions of this installation."""
        versions = {**installed_versions(), "model-quirks": version("model-quirks"), "python": platform.python_version()}
        return cls(
            versions=dict(sorted(versions.items())),
            platform=installed_platform(),
            machine=" ".join(filter(None, (platform.system(), platform.machine(), cpu_kind(cpu_features())))),
            proofs=tuple(sorted(proofs, key=lambda proof: proof.id)),
        )
