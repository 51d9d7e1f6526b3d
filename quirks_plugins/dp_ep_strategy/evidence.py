"""The paired runs of this flag: a run that vLLM cannot carry out is refused, or an engine is asked to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quirks_core.testing.lab import Lab, Outcome

#: What a paired run of this flag should see.
EXPECTED = "refused before the engine starts, or it starts"


async def refused_or_started(lab: Lab, model: Path, values: Mapping[str, Any], measure: str) -> Outcome:
    """Passes if the plan refuses the run, or if the engine starts and nothing was wrong with it after all.

    An engine that dies ends the scenario with its error, which fails it.

    Args:
        lab: The scenario's lab.
        model: The checkpoint.
        values: The run.
        measure: What the run asks for, in words.
    """
    from quirks_core.plan import RefusedError
    from quirks_core.testing.lab import Outcome

    try:
        async with lab.worker(model, values):
            return Outcome(True, measure, "the engine starts", EXPECTED)
    except RefusedError as error:
        return Outcome(True, measure, f"refused: {error.refusals[0].reason}", EXPECTED)
