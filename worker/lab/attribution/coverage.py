"""Which quirks cover a slot, and why others have no effect."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from quirks_core.base.errors import QuirksError, UsageError
from quirks_core.configuration.slots import Place, slot_named
from quirks_core.declaration.adjustments import Default, Require, holds
from quirks_core.declaration.trace import Answer
from quirks_core.plan.evaluate import matches
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.propose import computed
from quirks_core.plan.records import Plan, State, Status, Verdict
from quirks_core.plugins.registry import Registry
from worker.lab.attribution.settings import QUIRK
from worker.lab.parity.records import Change, Coverage

#: The order in which quirks are shown: those that can help most easily first.
_ORDER = (
    State.DISABLED, State.ACTIVE, State.SUPERSEDED, State.UNKNOWN, State.NOT_EXAMINED, State.DORMANT, State.NOT_MATCHED
)  # fmt: skip


def covering(step: Change, plan: Plan, registry: Registry) -> tuple[Coverage, ...]:
    """Returns the quirks that set what a step changed, with their state in the user's plan."""
    verdicts = {verdict.id: verdict for verdict in plan.verdicts}
    found: dict[str, Coverage] = {}
    for name, _, wanted in step.parts:
        for item in _that_set(name, wanted, plan, registry):
            if (verdict := verdicts.get(item.quirk.id)) is not None:
                found.setdefault(item.quirk.id, _coverage(item, name, wanted, verdict, plan))
    return tuple(sorted(found.values(), key=lambda item: (_ORDER.index(State(item.state)), item.id)))


def quirks_that_set(slot: str, registry: Registry, a: Container[str], b: Container[str]) -> tuple[Coverage, ...]:
    """Returns the quirks that adjust a slot, and in which of two engines, given the ids in force in each, they are in force."""
    found = []
    for item in registry.loaded:
        if any(getattr(adjustment, "slot", None) == slot for adjustment in item.quirk.adjustments):
            where = [side for side, ids in (("A", a), ("B", b)) if item.quirk.id in ids]
            state = f"in force in {' and '.join(where)}" if where else "in force in neither"
            found.append(Coverage(id=item.quirk.id, state=state, because=item.quirk.title))
    return tuple(found)


def setters(slot: str, plan: Plan) -> tuple[str, ...]:
    """Returns the ids of the quirks whose value of a slot is in force, in alphabetical order."""
    lines = (line for line in plan.adjustments if line.slot == slot and line.in_force)
    return tuple(sorted({quirk.id for line in lines for quirk in line.quirks}))


def _that_set(name: str, value: Any, plan: Plan, registry: Registry) -> Iterator[Loaded]:
    if name.startswith(QUIRK):
        try:
            yield registry.find(name.removeprefix(QUIRK))
        except UsageError:  # the plan is from another installation
            return
    for item in registry.loaded:
        if any(True for _ in _adjustments(item, name, value, plan)):
            yield item


def _adjustments(item: Loaded, slot: str, value: Any, plan: Plan) -> Iterator[Default | Require]:
    for adjustment in item.quirk.adjustments:
        if isinstance(adjustment, Default | Require) and adjustment.slot == slot:
            try:
                operand = computed(plan.context, adjustment.operand)
            except QuirksError:  # its function does not support this kind of run
                continue
            if holds(adjustment.relation, operand, value):
                yield adjustment


def _coverage(item: Loaded, slot: str, value: Any, verdict: Verdict, plan: Plan) -> Coverage:
    state, because, switch = verdict.state, verdict.because, ""
    if state is State.DISABLED and verdict.switch is not None and verdict.verdict is Answer.YES:
        switch = f"remove {verdict.switch.name!r} from {verdict.switch.layer}"
    elif state is State.DISABLED:  # switching it on would not help
        state = State.NOT_MATCHED if verdict.verdict is Answer.NO else State.UNKNOWN
        decisive = next((leaf for leaf in verdict.trace if leaf.answer is verdict.verdict), None)
        because, switch = f"{because}; without the switch: {decisive}", f"--force {verdict.id}"
    elif state in (State.UNKNOWN, State.NOT_EXAMINED, State.DORMANT) or verdict.verdict is not Answer.YES:
        switch = f"--force {verdict.id}"
    elif state in (State.ACTIVE, State.NOT_MATCHED):
        because, switch = _in_the_way(item, slot, value, plan)
    if switch and state is not State.ACTIVE and plan.context.is_typed(slot) and plan.context.value(slot) != value:
        switch = f"{switch}, and {_remove(slot, plan)}"  # otherwise the user's value wins over the quirk, or the run is refused
    return Coverage(id=verdict.id, state=state.value, because=because, switch=switch)


def _in_the_way(item: Loaded, slot: str, value: Any, plan: Plan) -> tuple[str, str]:
    """Returns why an active quirk has not set the slot, and what the user can do about it."""
    lines = [line for line in plan.adjustments if line.slot == slot and any(quirk.id == item.quirk.id for quirk in line.quirks)]
    line = next((line for line in lines if line.value == value), None)
    if line is None:
        return _condition(item, slot, value, plan), ""
    if line.status is Status.KEPT_USER:
        return line.reason, _remove(slot, plan)
    if line.status is Status.OUTRANKED:
        others = [other for other in plan.adjustments if other.slot == slot and other.in_force]
        winners = ", ".join(f"{quirk.id} sets {other.value!r}" for other in others for quirk in other.quirks)
        return f"{line.reason}: {winners}", ""
    return line.reason, ""


def _remove(slot: str, plan: Plan) -> str:
    if slot_named(slot).place is Place.VARIABLE:
        return f"unset {slot_named(slot).key}"
    value = plan.context.settings.get(slot)
    shown = str(value).lower() if isinstance(value, bool) else value  # as in YAML
    return f"remove {slot}: {shown} from your configuration"


def _condition(item: Loaded, slot: str, value: Any, plan: Plan) -> str:
    """Names the condition on a single adjustment that does not hold."""
    for adjustment in _adjustments(item, slot, value, plan):
        if adjustment.when is not None:
            trace = matches(adjustment.when, plan.context)
            if trace.answer is not Answer.YES:
                return f"its condition on {slot} does not hold: {trace.decisive}"
    return "every condition holds"
