"""What a plan comes to, as rows that every rendering uses: what is in force, advised, undecided, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import Field

from quirks_core.base.record import Record
from quirks_core.configuration.slots import slot_named
from quirks_core.plan.records import NoteKind, Plan, PlannedAdjustment, State, Status, Strength

#: How everything is seen, in messages of a program that supplies its own facts.
SEE_ALL = "'quirks plan --verbose' lists everything"

#: By slot, the call or option that does it.
_CALLS: Mapping[str, Callable[[Any], str]] = {
    "refit.clear_cache": lambda value: (
        "await engine.pause_generation(clear_cache=True), or llm.reset_prefix_cache() after each update"
        if value
        else "await engine.pause_generation(clear_cache=False) before an update"
    ),
    "refit.scope": lambda value: (
        "send model.state_dict() instead of model.named_parameters()"
        if value == "state_dict"
        else "send model.named_parameters()"
    ),
    "request.timeout_s": lambda value: f"OpenAI(timeout={value:g}), or asyncio.timeout({value:g}) around engine.generate",
}


#: The groups of what is done, and of what somebody else has to do; the others are words of `Status` and `State`.
IN_FORCE, ADVISED = "in force", "advised"
_OF_STATUS = (Status.ALREADY_SET, Status.KEPT_USER, Status.OUTRANKED)
_OF_STATE = (State.DORMANT, State.SUPERSEDED, State.DISABLED)


class Entry(Record):
    """One thing that quirks do to a run, require of the trainer or the client, or do not do.

    Attributes:
        group: What became of it.
        slot: The slot that it is about; empty for a patch, and for a sentence.
        quirks: Ids of the quirks.
        what: What it is: ``engine.seed = 3``, ``patch Scheduler.schedule``; a sentence of advice.
        why: The reason.
        how: The call or option with which the trainer or the client does it; empty where the engine does, and for a sentence.
        required: Correctness needs it.
    """

    group: str = Field(exclude=True)
    slot: str = Field("", exclude=True)
    quirks: tuple[str, ...]
    what: str
    why: str = ""
    how: str = ""
    required: bool = False

    @property
    def whole(self) -> str:
        """What it is, and how it is done."""
        return f"{self.what}: {self.how}" if self.how else self.what


class Summary(Record):
    """The lists of what matters.

    Attributes:
        in_force: What the engine, or our worker, does: settings, then patches; values that were set already are not among it.
        advised: What the trainer or the client has to do, and advice; what correctness requires comes first.
        undecided: The missing facts, each with the quirks that do nothing, wholly or in part, without it.
    """

    in_force: tuple[Entry, ...]
    advised: tuple[Entry, ...]
    undecided: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, plan: Plan) -> Summary:
        """Sorts what a plan holds into the lists."""
        in_force, advised = ([row for row in rows(plan) if row.group == group] for group in (IN_FORCE, ADVISED))
        return cls(in_force=tuple(in_force), advised=tuple(advised), undecided=plan.undecided)


def rows(plan: Plan) -> Iterator[Entry]:
    """Yields what becomes of everything that quirks ask of a run; what is undecided or refused is not among it."""
    applied = [item for item in plan.adjustments if item.status is Status.APPLIED]
    for item in applied:
        if is_done(plan, item.slot):
            yield Entry(group=IN_FORCE, slot=item.slot, quirks=_ids(item), what=item.wanted, why=item.quirks[0].reason)
    for patch in plan.patches:
        what = f"patch {patch.target.rpartition(':')[2]}"
        yield Entry(group=IN_FORCE, quirks=(patch.quirk.id,), what=what, why=patch.quirk.reason)
    advised = [_advice(plan, item) for item in applied if not is_done(plan, item.slot)]
    notes = [note for note in plan.warnings if note.kind is NoteKind.ADVICE]
    advised += [
        Entry(group=ADVISED, quirks=(note.quirk or "",), what=note.text.removeprefix(f"{note.quirk}: ")) for note in notes
    ]
    yield from sorted(advised, key=lambda entry: not entry.required)
    for item in plan.adjustments:
        if item.status in _OF_STATUS:
            yield Entry(group=item.status, slot=item.slot, quirks=_ids(item), what=item.wanted, why=item.reason)
    for verdict in plan.verdicts:
        if verdict.state in _OF_STATE:
            yield Entry(group=verdict.state, quirks=(verdict.id,), what=verdict.because)


def messages(plan: Plan) -> Iterator[str]:
    """Yields the warnings of a plan as sentences; what is undecided is one."""
    yield from (note.text for note in plan.notes)
    if quirks := {name for names in plan.undecided.values() for name in names}:
        who = f"{len(quirks)} quirks" if len(quirks) > 1 else "".join(quirks)
        yield f"undecided: {who}, without {', '.join(plan.undecided)}; {SEE_ALL}"


def of_our_worker(plan: Plan) -> bool:
    """Returns whether a plan is for an engine of our worker, rather than for one that another program starts."""
    return plan.context.settings.get("engine.generate_from_dummy") is not None


def is_done(plan: Plan, slot: str) -> bool:
    """Returns whether a slot is put into force: by the engine, or by our worker, which does all but the trainer's part."""
    return slot_named(slot).is_enforced or (of_our_worker(plan) and slot_named(slot).family != "train")


def call(slot: str, value: Any) -> str:
    """Returns the call or option with which the trainer or the client sets a slot."""
    if slot in _CALLS:
        return _CALLS[slot](value)
    family, key = slot_named(slot).family, slot_named(slot).key
    if family == "sampling":
        return f"SamplingParams({key}={value!r}), or {key!r} in the request"
    if family == "train":
        return f"set it in the trainer ({key} = {_shown(value)})"
    return "set it where the engine is started from"


def _advice(plan: Plan, item: PlannedAdjustment) -> Entry:
    value = plan.changes.get(item.slot, item.value)
    required = item.strength is Strength.REQUIRE
    why = item.quirks[0].reason
    if required:
        title = next(verdict.title for verdict in plan.verdicts if verdict.id == item.quirks[0].id)
        why += f"; without it: {title}" if title != why else ""
    what, how = f"{item.slot} = {_shown(value)}", call(item.slot, value)
    return Entry(group=ADVISED, quirks=_ids(item), what=what, why=why, how=how, required=required)


def _ids(item: PlannedAdjustment) -> tuple[str, ...]:
    return tuple(quirk.id for quirk in item.quirks)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
