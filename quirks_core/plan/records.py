"""The plan: what applies to one run and why. Frozen, canonical as JSON, named by a SHA-256 digest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, ValidationError

from quirks_core.base.errors import QuirksError
from quirks_core.base.json_values import canonical, sha256
from quirks_core.base.record import Record
from quirks_core.base.text import indented
from quirks_core.configuration.slots import find_slot
from quirks_core.declaration.adjustments import Relation
from quirks_core.declaration.flags import Kind, flag_name
from quirks_core.declaration.trace import Answer, Leaf
from quirks_core.facts.context import RunContext
from quirks_core.facts.model_runner import MODEL_RUNNER


class Strength(StrEnum):
    """How strongly an adjustment is requested."""

    DEFAULT = auto()
    REQUIRE = auto()


class Status(StrEnum):
    """What became of an adjustment."""

    APPLIED = auto()  #: it changes the value
    ALREADY_SET = auto()  #: the value was that already
    KEPT_USER = auto()  #: the user's explicit value won over a default
    OUTRANKED = auto()  #: a requirement, or a stricter bound, on the same slot won
    CONFLICT = auto()  #: equally strong adjustments disagree
    REFUSED = auto()  #: the user's explicit value contradicts a requirement


class State(StrEnum):
    """What became of a quirk."""

    ACTIVE = auto()  #: it concerns this run
    DORMANT = auto()  #: it would, but the installed version is not affected
    NOT_MATCHED = auto()  #: it concerns other models or configurations
    NOT_EXAMINED = auto()  #: it may concern this run, but nobody examined the installed version; it does nothing
    UNKNOWN = auto()  #: a fact is missing; it does nothing, and a warning names it
    DISABLED = auto()  #: the user switched it off
    SUPERSEDED = auto()  #: another quirk replaces it


class NoteKind(StrEnum):
    """What a warning of a plan is about."""

    PLUGIN = auto()  #: a plugin was not loaded
    HOOK = auto()  #: a plugin's facts cannot be used
    SWITCH = auto()  #: a switch may name nothing
    UNCHECKED = auto()  #: the source that a setting or patch is compared with is not installed
    UNLISTED = auto()  #: the installed vLLM does not list the value of a setting
    UNREAD = auto()  #: a version is newer than the newest that was read
    UNEXAMINED = auto()  #: quirks do nothing, because nobody examined the version
    UNDECIDED = auto()  #: a fact is missing, so that a quirk, or one of its adjustments, does nothing
    UNDECIDED_ADVICE = auto()  #: a fact is missing, so that a quirk's advice is left out; what it sets is decided
    ADVICE = auto()  #: a quirk's advice


class Note(Record):
    """A warning of a plan.

    Attributes:
        kind: What it is about.
        quirk: Id of the quirk that it concerns; None if it concerns none.
        about: The slots, facts or patch targets that it concerns; if it is undecided, the missing facts that a run can have.
        text: The warning, as it is shown.
    """

    kind: NoteKind
    quirk: str | None = None
    about: tuple[str, ...] = ()
    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def is_undecided(self) -> bool:
        """A fact is missing."""
        return self.kind in (NoteKind.UNDECIDED, NoteKind.UNDECIDED_ADVICE)


class Switch(Record):
    """The switch that decides about a quirk."""

    on: bool
    name: str
    layer: str

    def __str__(self) -> str:
        return f"{'forced' if self.on else 'switched off'} by {self.name!r} in {self.layer}"


class Contributor(Record):
    """A quirk that requested something, and why; ``reference`` is where to read on."""

    id: str
    distribution: str
    version: str
    location: str
    reason: str
    reference: str = ""

    def __str__(self) -> str:
        return f"{self.id} ({self.distribution} {self.version}, {self.location})"


class PlannedAdjustment(Record):
    """One request for a slot: who requested which value, and what became of it."""

    slot: str
    relation: Relation = Relation.EQUALS
    value: Any
    strength: Strength
    flag: str
    status: Status
    reason: str
    quirks: tuple[Contributor, ...]

    @property
    def wanted(self) -> str:
        """What was requested, as ``engine.max_num_seqs ≤ 8``."""
        return f"{self.slot} {self.relation} {self.value}"

    @property
    def in_force(self) -> bool:
        """The slot will have this value because of, or in agreement with, a quirk."""
        return self.status in (Status.APPLIED, Status.ALREADY_SET)


class PlannedPatch(Record):
    """A patch to install in every engine process; names the quirk and where the code is, carries none."""

    target: str
    source: str
    flag: str
    fingerprint: str
    entry_point: str
    quirk: Contributor


class Refusal(Record):
    """Why the run must not start, what to do, and which switch overrides it.

    Attributes:
        slot: The slot that it is about; None if it is about none.
        target: The target of a patch that it is about; None if it is about none.
        lines: Lines that show the reason.
        off: Sets of quirks; each set settles the refusal if it is switched off. `switch` is the same in words.
    """

    kind: str
    slot: str | None = None
    target: str | None = None
    reason: str
    lines: tuple[str, ...] = ()
    remedy: str
    switch: str
    quirks: tuple[Contributor, ...]
    off: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, kind: str, reason: str, remedy: str, *, off: Iterable[tuple[str, ...]], **more: Any) -> Refusal:
        """Makes a refusal whose switch is what the sets of quirks are as options and as a setting."""
        sets = tuple(off)
        options = (" ".join(f"--disable {name}" for name in ids) for ids in sets)
        ways = (f"{option} (or quirks.disable: [{', '.join(ids)}])" for option, ids in zip(options, sets, strict=True))
        return cls(kind=kind, reason=reason, remedy=remedy, switch=" or ".join(ways), off=sets, **more)

    def __str__(self) -> str:
        who = " and ".join(str(quirk) for quirk in self.quirks)
        reason, remedy = indented(with_lines(self.reason, self.lines), 6), indented(self.remedy, 6)
        return f"{who}: {reason}\n    remedy: {remedy}\n    override: {self.switch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:  # no model of pydantic, which would take longer than the match
    """Whether a quirk concerns the run and what it costs there, with every comparison that was made, and the switch on it."""

    id: str
    title: str
    flag: str
    kind: Kind = Kind.WORKAROUND
    distribution: str
    version: str
    verdict: Answer
    state: State
    because: str
    cost: str = ""
    switch: Switch | None = None
    trace: Annotated[
        tuple[Leaf, ...], PlainSerializer(lambda trace: [leaf._asdict() for leaf in trace], return_type=list[dict[str, Any]])
    ]


class RefusedError(QuirksError):
    """The plan holds refusals; the message lists all of them."""

    def __init__(self, refusals: tuple[Refusal, ...]) -> None:
        self.refusals = refusals
        count = f"{len(refusals)} reason{'s' if len(refusals) > 1 else ''}"
        super().__init__("\n".join([f"this configuration is refused for {count}:", *(f"- {item}" for item in refusals)]))


class ProcessPlan(Record):
    """The part of a plan that every process carries out, small enough for one environment variable.

    Attributes:
        context: SHA-256 of the facts the plan was made for.
        changes: The slots that quirks change, with their final values.
        adjustments: Who requested what, and what became of it.
        patches: The patches to install.
        refused: Ids of the quirks that refuse the run.
        model_runner: The model runner that the facts lead to; empty if it is unknown.
    """

    context: str
    changes: dict[str, Any] = Field(default_factory=dict)
    adjustments: tuple[PlannedAdjustment, ...] = ()
    patches: tuple[PlannedPatch, ...] = ()
    refused: tuple[str, ...] = ()
    model_runner: str = ""

    @classmethod
    def read(cls, text: str, where: str) -> ProcessPlan:
        """Reads one from JSON.

        Raises:
            QuirksError: It cannot be read as a plan.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise QuirksError(f"the plan {where} cannot be read: {error}") from None

    @property
    def slots(self) -> set[str]:
        """The slots that quirks adjust."""
        return {line.slot for line in self.adjustments} | self.changes.keys()

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, without the place of a declaration, and without the runner, which the facts imply."""
        place = {"location", "reference"}
        left_out: Any = {"patches": {"__all__": {"quirk": place}}, "adjustments": {"__all__": {"quirks": {"__all__": place}}}}
        return sha256(self.model_dump(mode="json", exclude={"model_runner": True, **left_out}))


class Plan(Record):
    """What applies to one run and why.

    ``plan[ModelFlag.LOAD_FORMAT]`` gives the adjustments of one flag, ``plan.value("engine.load_format")`` the value that a
    slot ends up with.

    Attributes:
        digest: SHA-256 of what every process carries out.
        context: The facts.
        changes: The slots that quirks change, with their final values.
        adjustments: Who requested what, and what became of it.
        verdicts: Per quirk, whether it concerns the run and why.
        refusals: Why the run must not start.
        warnings: What the user should know.
        patches: The patches to install in every engine process.
    """

    digest: str
    context: RunContext
    changes: dict[str, Any] = Field(default_factory=dict)
    adjustments: tuple[PlannedAdjustment, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[Note, ...] = ()
    patches: tuple[PlannedPatch, ...] = ()

    def __getitem__(self, flag: str) -> tuple[PlannedAdjustment, ...]:
        """Returns the adjustments that quirks of one flag requested, whatever became of them.

        Raises:
            UsageError: No such flag.
        """
        name = flag_name(flag)
        ids = {verdict.id for verdict in self.verdicts if verdict.flag == name}
        # Quirks of different flags can be credited with the same value; it counts for each of their flags.
        return tuple(
            adjustment
            for adjustment in self.adjustments
            if adjustment.flag == name or any(quirk.id in ids for quirk in adjustment.quirks)
        )

    def value(self, slot: str) -> Any:
        """Returns the value that a slot ends up with: a quirk's, the user's, or the configuration's default.

        Raises:
            UsageError: No such slot.
        """
        find_slot(slot)
        return self.changes.get(slot, self.context.value(slot))

    @property
    def active(self) -> tuple[Verdict, ...]:
        """The quirks that concern this run."""
        return tuple(verdict for verdict in self.verdicts if verdict.state is State.ACTIVE)

    @property
    def undecided(self) -> dict[str, tuple[str, ...]]:
        """The missing facts in alphabetical order, each with the quirks that are undecided without it, wholly or in part."""
        found: dict[str, set[str]] = {}
        for note in self.warnings:
            for fact in note.about if note.is_undecided else ():
                found.setdefault(fact, set()).add(note.quirk or "")
        return {fact: tuple(sorted(found[fact])) for fact in sorted(found)}

    @property
    def notes(self) -> tuple[Note, ...]:
        """The warnings that `undecided` does not cover."""
        return tuple(note for note in self.warnings if not (note.is_undecided and note.about))

    @property
    def for_processes(self) -> ProcessPlan:
        """The part that travels to every process."""
        facts = self.context.model_dump(mode="json", exclude={"model": {"path"}, "sources": True})
        refused = tuple(sorted({quirk.id for refusal in self.refusals for quirk in refusal.quirks}))
        return ProcessPlan(
            context=sha256(facts),
            changes=self.changes,
            adjustments=self.adjustments,
            patches=self.patches,
            refused=refused,
            model_runner=self.model_runner,
        )

    @property
    def model_runner(self) -> str:
        """The model runner that the facts lead to, ``v1`` or ``v2``; empty if it is unknown."""
        found = self.context.fact(MODEL_RUNNER)
        return found if isinstance(found, str) else ""

    @property
    def captures_graphs(self) -> bool:
        """The engine runs CUDA graphs, as vLLM does on a GPU unless it is made eager."""
        return self.context.platform == "cuda" and not self.value("engine.enforce_eager")

    def check(self) -> None:
        """Makes sure that nothing refuses the run.

        Raises:
            RefusedError: Something does; the error lists everything.
        """
        if self.refusals:
            raise RefusedError(self.refusals)

    def to_json(self, *, indent: int | None = None) -> str:
        """Returns the plan as JSON with sorted keys, the same between runs."""
        return canonical(self.model_dump(mode="json"), indent=indent)


def with_lines(reason: str, lines: tuple[str, ...]) -> str:
    """Returns a reason with the lines that show it below."""
    return "\n    ".join([f"{reason}:", *lines]) if lines else reason
