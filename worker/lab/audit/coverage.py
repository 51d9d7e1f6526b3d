"""Which quirks could affect the weights after a refit, which of them cover a hazard, and what to declare if none does."""

from __future__ import annotations

from collections.abc import Sequence

from quirks_core.declaration.flags import Kind, ModelFlag
from quirks_core.plan.records import Plan
from worker.lab.attribution.coverage import setters
from worker.lab.audit.records import AGAIN, COMPLETE, FIRST, Hazard

#: Slots that decide where an engine's tensors come from, with their values in a run without quirks.
OPEN = {"engine.load_format": "dummy", "refit.scope": "parameters"}
#: Flags of the quirks that concern weights.
FLAGS = (ModelFlag.LOAD_FORMAT, ModelFlag.WEIGHT_SYNC)


def candidates(plan: Plan) -> tuple[str, ...]:
    """Returns the active quirks that could affect the weights after a refit, in alphabetical order.

    These are the workarounds and rules with a flag of `FLAGS`, the quirks that set a slot of `OPEN`, and those that patch
    something under a third party's flag, whose meaning is unknown. Patches under other built-in flags are not included: the
    engine may need them to start.
    """
    patching = {patch.quirk.id for patch in plan.patches}
    setting = {name for slot in OPEN for name in setters(slot, plan)}
    built_in = set(ModelFlag)
    found = {
        verdict.id
        for verdict in plan.active
        if (verdict.flag in FLAGS and verdict.kind is not Kind.FEATURE)
        or verdict.id in setting
        or (verdict.id in patching and verdict.flag not in built_in)
    }
    return tuple(sorted(found))


def changes_weights(plan: Plan) -> bool:
    """Whether a run under the plan can end with other weights than one without the quirks of weight transfer."""
    moved = any(plan.value(slot) != value for slot, value in OPEN.items())
    return moved or bool({patch.quirk.id for patch in plan.patches} & set(candidates(plan)))


def covering(hazard: Hazard, plan: Plan) -> tuple[str, ...]:
    """Names what covers a hazard that does not occur with the plan in force.

    A hazard that a refit of the state dict restores is credited to the quirks that send the buffers, else to those that load
    the checkpoint, else to those that patch the engine; any other hazard first to those that patch.

    Returns:
        Ids of quirks; where none sets it, the user's own ``slot=value``; empty if the hazard remains.
    """
    if not hazard.is_covered:
        return ()
    by_patch = tuple(sorted(set(candidates(plan)) & {patch.quirk.id for patch in plan.patches}))
    by_slot = next((_by_slot(plan, slot) for slot in _helpful(hazard) if plan.value(slot) != OPEN[slot]), ())
    return by_slot or by_patch if hazard.state_dict_restores else by_patch or by_slot


def _helpful(hazard: Hazard) -> list[str]:
    """Names the slots that can explain the results of the refits; the cheaper one first."""
    useless = {"refit.scope"} if not hazard.state_dict_restores else {"engine.load_format"} if hazard.is_destroyed else set()
    return [slot for slot in ("refit.scope", "engine.load_format") if slot not in useless]


def _by_slot(plan: Plan, slot: str) -> tuple[str, ...]:
    return setters(slot, plan) or (f"{slot}={plan.value(slot)}",)


def remedy(hazard: Hazard) -> str:
    """Returns a remedy for a hazard that nothing covers, as far as the refits show one."""
    if hazard.state_dict_restores:
        return "a refit of the state dict restores it: refit.scope=state_dict"
    if not hazard.in_checkpoint and hazard.kind == "buffer":
        return "no checkpoint holds it, so no refit can send it: a patch must compute it again"
    if {FIRST, COMPLETE, AGAIN} <= set(hazard.after) and hazard.kind != "buffer":
        return "no refit takes effect: the engine must process the layer again, which needs a patch"
    return "no refit restores it: try engine.load_format=auto; if that does not help, it needs a patch"


def adjustment(hazards: Sequence[Hazard]) -> str:
    """Returns the adjustment of a new quirk for hazards that no quirk covers."""
    if all(hazard.state_dict_restores for hazard in hazards):
        return 'Require("refit.scope", "state_dict")'
    if all(hazard.kind == "buffer" for hazard in hazards):
        return 'Require("engine.load_format", "auto")'
    return 'Patch("package.module:function", wrapper="…", expects="…", reason="…")'
