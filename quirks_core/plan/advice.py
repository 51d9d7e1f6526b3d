"""What quirks ask of the trainer or the client, which no hook in the engine can put into force: said with the exact call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from quirks_core.configuration.slots import is_enforced
from quirks_core.plan.records import Plan, PlannedAdjustment, Status, Strength

#: By slot, the call or option that does it.
_CALLS: Mapping[str, Callable[[Any], str]] = MappingProxyType(
    {
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
)


def advice(plan: Plan) -> Iterator[tuple[PlannedAdjustment, str]]:
    """Yields the adjustments that cannot be put into force here, each with a line that says what to do.

    A `Require` among them is a warning that names what goes wrong without it.
    """
    titles = {verdict.id: verdict.title for verdict in plan.verdicts}
    for item in plan.adjustments:
        if item.status is not Status.APPLIED or is_enforced(item.slot):
            continue
        value = plan.changes.get(item.slot, item.value)
        who = ", ".join(quirk.id for quirk in item.quirks)
        what = f"{item.slot} = {_shown(value)}: {call(item.slot, value)} ({who}: {item.quirks[0].reason})"
        if item.strength is Strength.REQUIRE:
            yield item, f"warning: nothing here enforces {what}; without it: {titles[item.quirks[0].id]}"
        else:
            yield item, f"advice: {what}"


def call(slot: str, value: Any) -> str:
    """Returns the call or option with which the trainer or the client sets a slot."""
    if slot in _CALLS:
        return _CALLS[slot](value)
    section, _, key = slot.partition(".")
    if section == "sampling":
        return f"SamplingParams({key}={value!r}), or {key!r} in the request"
    if section == "train":
        return f"set it in the trainer ({key} = {_shown(value)})"
    return "set it where the engine is started from"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
