"""The paired runs of this flag: a run that vLLM cannot carry out is refused, or an engine tries it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quirks_plugins.kit import Lab, Outcome

if TYPE_CHECKING:
    from worker.engine.engine_rank import EngineRank

_EXPECTED = "refused before the engine starts, or it starts"


async def refused_or_started(
    lab: Lab, model: Path, values: Mapping[str, Any], measure: str, *, engine_rank: EngineRank | None = None
) -> Outcome:
    """Passes if the plan refuses the run, or if the engine starts and nothing was wrong with it after all.

    An engine that dies ends the scenario with its error, which fails it. `measure` is the run's request, in words.
    """
    from quirks_core.plan.records import RefusedError

    try:
        async with lab.worker(model, values, engine_rank=engine_rank):
            return Outcome(True, measure, "the engine starts", _EXPECTED)
    except RefusedError as error:
        return Outcome(True, measure, f"refused: {error.refusals[0].reason}", _EXPECTED)
