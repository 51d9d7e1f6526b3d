"""Puts a plan into force in this process, and hands it down to the processes that it starts; all of it can be undone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from quirks_core.apply import handed_down, process
from quirks_core.base.errors import QuirksError, UsageError
from quirks_core.configuration.slots import Place, placed
from quirks_core.plan.records import Plan


@dataclass(slots=True)
class Overlay:
    """Environment variables that were set on top of the user's."""

    _before: dict[str, str | None] = field(default_factory=dict)

    def set(self, variable: str, value: str) -> None:
        """Sets a variable; `restore` sets it back."""
        self._before.setdefault(variable, os.environ.get(variable))
        os.environ[variable] = value

    def original(self) -> dict[str, str]:
        """Returns the environment as the user set it."""
        found = {**os.environ, **{name: text for name, text in self._before.items() if text is not None}}
        return {name: text for name, text in found.items() if self._before.get(name, text) is not None}

    def restore(self) -> None:
        """Sets every variable back to what it was."""
        for variable, text in self._before.items():
            os.environ.pop(variable, None)
            if text is not None:
                os.environ[variable] = text
        self._before.clear()


#: The overlay of this process.
environment = Overlay()


def second_plan(digest: str) -> QuirksError:
    """Makes the error of a plan that cannot come beside the one that is in force.

    Args:
        digest: Of the one that is in force.
    """
    return QuirksError(
        f"plan {digest[:12]}… is in force in this process, and a process has one plan at a time; shut that engine down first, "
        "or start this one in a process of its own"
    )


def hand_down(plan: Plan, variables: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Sets the variables of a plan, and the one that holds the plan.

    Args:
        plan: The plan.
        variables: Further variables; those of the plan come last.

    Returns:
        What may not have its full effect, in words.

    Raises:
        QuirksError: The plan cannot be written as JSON; nothing was changed.
    """
    text = plan.for_processes.to_variable()
    changes = placed(Place.VARIABLE, plan.changes)
    for variable, value in {**(variables or {}), **changes, handed_down.PLAN_VARIABLE: text}.items():
        environment.set(variable, value)
    late = "was set after vLLM was imported; this process may not see it"
    return tuple(f"env.{name} {late}" for name in changes) if "vllm" in sys.modules else ()


def undo() -> None:
    """Takes patches off in this process and restores its environment."""
    process.undo()
    environment.restore()


def check_engine_environment(environ: Mapping[str, str]) -> None:
    """Makes sure that vLLM will load our plugins in every process.

    Raises:
        UsageError: It will not: VLLM_PLUGINS is set and does not name ours.
    """
    names = environ.get("VLLM_PLUGINS")
    if names is None:
        return
    missing = [name for name in handed_down.VLLM_PLUGINS if name not in names.split(",")]
    if missing:
        wanted = ",".join(filter(None, [names, *missing]))
        raise UsageError(
            f"VLLM_PLUGINS={names!r} keeps quirks out of the engine's processes; set VLLM_PLUGINS={wanted!r}, or unset it"
        )
