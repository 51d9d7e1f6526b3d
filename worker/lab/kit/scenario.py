"""Runs one scenario in this process and writes down what came of it: ``python -m worker.lab.kit.scenario``.

`worker.lab.kit.prove` starts it, with the switches in the environment.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from quirks_core.base import whole_file
from quirks_core.plan.records import RefusedError
from worker.lab.kit.evidence import set_mode
from worker.lab.kit.lab import CannotShowError, Lab, Outcome, set_environment

#: An error that came through these packages is what the engine, or the worker around it, made of the run.
_ENGINE = ("vllm", "worker")
#: What is looked at in a run that ended with such an error.
NO_ERROR = "the run ends without an error"


def main(arguments: Sequence[str]) -> None:
    """Runs the scenario and writes the result file: ``outcome`` or ``error``, and the quirk's ``states``, one per plan.

    Args:
        arguments: The scenario as ``package.module:function``, the quirk's id, the file for the result, the folder for
            checkpoints.
    """
    scenario, quirk, result, folder = arguments
    set_mode()
    set_environment()
    asyncio.run(_run(scenario, quirk, Path(result), Lab(Path(folder))))


async def _run(scenario: str, quirk: str, result: Path, lab: Lab) -> None:
    outcome: Outcome | None = None
    error = ""
    try:
        outcome = await _outcome(scenario, lab)
    except CannotShowError as caught:
        error = str(caught)
    except (Exception, SystemExit, asyncio.CancelledError) as caught:
        traceback.print_exception(caught)  # into the log of the run, where the error that a quirk declares is looked for
        if _is_of_the_engine(caught):
            outcome = Outcome(False, NO_ERROR, first_line(caught), "no error")
        else:
            error = f"the scenario is broken: {first_line(caught)}"
    states = [verdict.state for plan in lab.plans for verdict in plan.verdicts if verdict.id == quirk]
    found = {
        "outcome": outcome and asdict(outcome),
        "error": error,
        "states": states,
        "graphs": any(plan.captures_graphs for plan in lab.plans),
        "runner": ", ".join(sorted({plan.model_runner for plan in lab.plans if plan.model_runner})),
    }
    # Before the event loop closes, which some engines hang in; complete or not at all.
    whole_file.write(result, json.dumps(found))


async def _outcome(name: str, lab: Lab) -> Outcome:
    scenario = pkgutil.resolve_name(name)
    if not inspect.iscoroutinefunction(scenario):
        raise TypeError(f"{name} is not an 'async def' function")
    outcome = await scenario(lab)
    if not isinstance(outcome, Outcome):
        raise TypeError(f"{name} returned {type(outcome).__name__}, not an Outcome")
    return outcome


def _is_of_the_engine(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _ENGINE:
            return True
        trace = trace.tb_next
    return False


def first_line(error: BaseException) -> str:
    """Returns an error's type and the first line of its message; of a refusal its reasons as well."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    refusals = error.refusals if isinstance(error, RefusedError) else ()
    line = " ".join(filter(None, (line, "; ".join(f"{one.quirks[0].id}: {one.reason}" for one in refusals))))
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1:])
