"""Quirks that change their state between two releases, what they set there, and patches that no longer fit."""

from __future__ import annotations

from collections.abc import Iterator

from quirks_core.base.json_values import canonical
from quirks_core.configuration.slots import slot_named
from quirks_core.hook import vllm_functions
from quirks_core.plan import diff, summary
from quirks_core.plan.records import NoteKind, Plan, PlannedAdjustment, Refusal, State, Status
from quirks_core.plugins.registry import Registry
from quirks_core.plugins.validate import expired
from quirks_core.reporting.finding import Finding
from quirks_core.upgrade.changes import Change
from quirks_core.upgrade.finding import Level, Section, changed_lines
from quirks_core.upgrade.release import OnRelease

_DRIFT, _REQUIRE = "drift", "require"


def quirk_changes(before: OnRelease, after: OnRelease, registry: Registry) -> Iterator[Finding]:
    """Yields what changes in the plan of a run."""
    found = diff.diff(before.plan, after.plan)
    reported: set[str] = set()
    changed: set[str] = set()
    for change in found.quirks:
        if change.missing or change.a["state"] != change.b["state"]:
            yield from _state(change, after, registry)
            reported |= set(_slots_of(after.plan, change.name))
            changed.add(change.name)
    if undecided := _undecided(before.plan, after.plan):
        message = f"{len(undecided)} quirks are undecided on both releases: a fact is missing"
        yield Section.QUIRKS.finding(Level.NOTE, "undecided", message, tuple(undecided))
    for slot in found.slots:
        old, new = (f"{_value(side['value'])} ({', '.join(side['who']) or 'not set'})" for side in (slot.a, slot.b))
        if slot.name not in reported and old != new:
            message = f"{old} becomes {new}"
            yield Section.QUIRKS.finding(Level.NOTE, slot.name, message)
    as_before = {_key(item) for item in before.plan.refusals}
    for refusal in after.plan.refusals:
        yield _refusal(refusal, before, after, before.release.label if _key(refusal) in as_before else "")
    for refusal in before.plan.refusals:
        if _key(refusal) not in {_key(item) for item in after.plan.refusals}:
            who = " and ".join(quirk.id for quirk in refusal.quirks)
            message = f"{before.release.label} refuses the run, and {after.release.label} does not: {refusal.reason}"
            yield Section.QUIRKS.finding(Level.NOTE, who, message)
    for note in (note for note in after.plan.warnings if note not in before.plan.warnings):
        if note.kind is NoteKind.UNLISTED:  # the release's own judgement covers whether it takes the value
            continue
        if not note.is_undecided or note.quirk not in changed:  # that it becomes undecided is a finding already
            yield Section.QUIRKS.finding(Level.NOTE, "warning", note.text)


def hook_problem(after: OnRelease) -> Iterator[Finding]:
    """Yields why the hook cannot be put on the release in question."""
    release = after.release
    if problem := vllm_functions.problem(release.version or "of an unknown version", release.source):
        message = f"{problem}: MODEL_QUIRKS would start the engine without quirks"
        needed = after.plan.changes or after.plan.patches
        yield Section.SEAMS.finding(Level.STOP if needed else Level.NOTE, "the hook", message)


def _state(change: diff.Change, after: OnRelease, registry: Registry) -> Iterator[Finding]:
    if change.missing == "b":
        return
    titles = {verdict.id: verdict.title for verdict in after.plan.verdicts}
    because, level = change.b["because"], Level.NOTE
    match change.b["state"]:
        case State.ACTIVE:
            message = f"becomes active: {titles[change.name]}"
        case State.DORMANT:
            message = f"{'expires' if expired(registry.find(change.name).quirk) else 'becomes dormant'}: {because}"
        case State.UNKNOWN | State.NOT_EXAMINED as state:
            what = "undecided" if state is State.UNKNOWN else "not examined"
            message, level = f"becomes {what}: {because}", Level.UNKNOWN
        case State.NOT_MATCHED:
            message = f"no longer concerns the run: {because}"
        case state:
            message = f"becomes {state.replace('_', ' ')}: {because}"
    items = _slots_of(after.plan, change.name) if change.b["state"] == State.ACTIVE else {}
    lines = tuple(f"{slot} = {_value(after.plan.changes.get(slot, item.value))}" for slot, item in items.items())
    patches = [patch.target for patch in after.plan.patches if patch.quirk.id == change.name]
    lines += tuple(f"patches {target}" for target in patches if change.b["state"] == State.ACTIVE)
    yield Section.QUIRKS.finding(level, change.name, message, lines)
    for slot, item in items.items():
        if not slot_named(slot).is_enforced:
            value = after.plan.changes.get(slot, item.value)
            message = f"{change.name} asks for it, and nothing in the engine can do it"
            yield Finding(Level.CHANGE, slot, message, section=Section.QUIRKS, paste=summary.call(slot, value))


def _undecided(before: Plan, after: Plan) -> list[str]:
    """The quirks that no release decides, each with the fact that is missing."""
    old = {verdict.id for verdict in before.verdicts if verdict.state is State.UNKNOWN}
    return [f"{one.id}: {one.because}" for one in after.verdicts if one.state is State.UNKNOWN and one.id in old]


def _slots_of(plan: Plan, quirk: str) -> dict[str, PlannedAdjustment]:
    """What a quirk sets, by slot."""
    return {
        item.slot: item
        for item in plan.adjustments
        if item.status is Status.APPLIED and any(one.id == quirk for one in item.quirks)
    }


def _key(refusal: Refusal) -> tuple[str | None, ...]:
    return refusal.kind, refusal.slot, *(quirk.id for quirk in refusal.quirks)


def _refusal(refusal: Refusal, before: OnRelease, after: OnRelease, as_on: str) -> Finding:
    who = " and ".join(quirk.id for quirk in refusal.quirks)
    also = f" (as on {as_on})" if as_on else ""
    if refusal.kind == _DRIFT and refusal.target is not None:
        what = refusal.reason.removeprefix(refusal.target).strip(": ")  # it is the finding's subject
        message = f"{what} (patch of {who}){also}; upgrade {refusal.quirks[0].distribution}, or {refusal.switch}"
        was, now = (side.release.source.attribute_source(refusal.target) for side in (before, after))
        return Section.PATCHES.finding(Level.STOP, refusal.target, message, (*refusal.lines, *changed_lines(was, now)))
    wanted = [item for item in after.plan.adjustments if item.slot == refusal.slot and item.status is Status.REFUSED]
    message = f"refused{also}: {refusal.reason}; {refusal.remedy}, or {refusal.switch}"
    if refusal.kind == _REQUIRE and len(wanted) == 1 and wanted[0].relation.value == "=" and refusal.slot:
        change = Change(new=refusal.slot, value=wanted[0].value)
        return Section.QUIRKS.finding(Level.CHANGE, refusal.slot, message, change=change)
    return Section.QUIRKS.finding(Level.STOP, refusal.slot or who, message)


def _value(value: object) -> str:
    return "left open" if value is None else value if isinstance(value, str) else canonical(value)
