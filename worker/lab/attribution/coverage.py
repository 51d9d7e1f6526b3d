"""Which quirks cover a slot, and in which state they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quirks_core.base.errors import QuirksError
from quirks_core.declaration.adjustments import Default, Require, holds
from quirks_core.declaration.trace import Answer
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.propose import computed
from quirks_core.plan.records import Plan, State, Verdict
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
            found.setdefault(item.quirk.id, _coverage(name, wanted, verdicts[item.quirk.id], plan))
    return tuple(sorted(found.values(), key=lambda item: (_ORDER.index(State(item.state)), item.id)))


def setters(slot: str, plan: Plan) -> tuple[str, ...]:
    """Returns the ids of the quirks whose value of a slot is in force, in alphabetical order."""
    lines = (line for line in plan.adjustments if line.slot == slot and line.in_force)
    return tuple(sorted({quirk.id for line in lines for quirk in line.quirks}))


def _that_set(name: str, value: Any, plan: Plan, registry: Registry) -> Iterator[Loaded]:
    if name.startswith(QUIRK):
        yield registry.find(name.removeprefix(QUIRK))
    for item in registry.loaded:
        if any(_gives(adjustment, name, value, plan) for adjustment in item.quirk.adjustments):
            yield item


def _gives(adjustment: Any, slot: str, value: Any, plan: Plan) -> bool:
    if not isinstance(adjustment, Default | Require) or adjustment.slot != slot:
        return False
    try:
        return holds(adjustment.relation, computed(plan.context, adjustment.operand), value)
    except QuirksError:  # its function does not support this kind of run
        return False


def _coverage(slot: str, value: Any, verdict: Verdict, plan: Plan) -> Coverage:
    state, because = verdict.state, verdict.because
    if state is State.DISABLED and verdict.verdict is not Answer.YES:  # switching it on would not help
        state = State.NOT_MATCHED if verdict.verdict is Answer.NO else State.UNKNOWN
    lines = (line for line in plan.adjustments if (line.slot, line.value) == (slot, value))
    why = next((line.reason for line in lines if any(quirk.id == verdict.id for quirk in line.quirks)), because)
    return Coverage(id=verdict.id, state=state.value, because=why)
