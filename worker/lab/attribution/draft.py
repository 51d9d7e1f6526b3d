"""The lines of a new quirk that `quirks new` leaves open, for a setting that no quirk covers."""

from __future__ import annotations

import json
from collections.abc import Iterable

from quirks_core.plan.records import Plan
from worker.lab.parity.records import Change


def draft(model_type: str | None, purpose: str, adjustments: Iterable[str]) -> str:
    """Returns the match and the adjustments of a new quirk, as Python, below the command that makes its package.

    Args:
        model_type: The ``model_type`` of the run's model; None if it is unknown.
        purpose: The purpose of the run.
        adjustments: Calls such as ``Require("refit.scope", "state_dict")``.
    """
    model = f'model_type("{model_type}") & ' if model_type else ""
    return "\n".join(
        [
            "# quirks new NAME makes a package with a quirk and its tests; write into its declaration:",
            f'match={model}purpose("{purpose}"),',
            "adjustments=[",
            *(f"    {adjustment}," for adjustment in adjustments),
            "],",
        ]
    )


def draft_of(step: Change, plan: Plan) -> str:
    """Returns the draft of a quirk that sets what a step changed; it requires what a default could not set."""
    adjustments = []
    for slot, _, value in step.parts:
        is_set = plan.context.is_typed(slot) or any(line.slot == slot and line.in_force for line in plan.adjustments)
        shown = json.dumps(value) if isinstance(value, str) else repr(value)
        adjustments.append(f'{"Require" if is_set else "Default"}("{slot}", {shown})')
    return draft(plan.context.model.model_type, plan.context.purpose, adjustments)
