"""Holds a trainer's definition of a rollout against its engine's, before the first one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from quirks_core.base.errors import UsageError
from quirks_core.hook import report
from quirks_core.plan.contract import Contract
from quirks_core.plan.records import Plan
from worker.refit.running import call

_STATED = "worker.refit.engine.receiving:stated"


def agree(
    engine: Any,
    mine: Contract,
    *,
    requests: Mapping[str, Any] | None = None,
    on_difference: Literal["stop", "warn"] = "stop",
) -> Contract:
    """Compares a trainer's contract with its engine's.

    Args:
        engine: The URL of a ``vllm serve`` (with ``VLLM_SERVER_DEV_MODE=1``), vLLM's ``LLM``, or our worker or its plan.
        mine: The trainer's.
        requests: Values of the engine's side that requests set, as ``temperature``, by the attribute's name.
        on_difference: An error, or a line in the log for each difference.

    Returns:
        The engine's.

    Raises:
        UsageError: They differ and that is an error; or the engine has no plan, or the server no door to it.
    """
    theirs = [replace(one, **(requests or {})) for one in _contracts(engine)]
    found = {name: values for one in theirs for name, values in mine.differences(one).items()}
    lines = [f"{name}: the trainer has {here}, the engine {there}" for name, (here, there) in found.items()]
    if lines and on_difference != "warn":
        raise UsageError(
            f"trainer and engine differ before the first rollout: {'; '.join(lines)}; on_difference='warn' goes on"
        )
    for line in lines:
        report.error(f"contract: {line}")
    if not lines:
        names = ", ".join(name for name in mine.known if name in theirs[0].known)
        report.info(f"contract: trainer and engine agree on {names}; plan {theirs[0].plan}")
    return theirs[0]


def _contracts(engine: Any) -> list[Contract]:
    """Returns the contract of each process of an engine."""
    plan = engine if isinstance(engine, Plan) else getattr(engine, "plan", None)
    if isinstance(plan, Plan):
        return [Contract.of(plan)]
    return [Contract(**answer) for answer in call(engine, _STATED)]
