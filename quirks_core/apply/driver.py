"""Puts a plan into force: the one module of the driver with side effects, and every one of them can be undone."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from quirks_core.apply import handed_down, process
from quirks_core.apply.receipt import Effect
from quirks_core.base import private_folder
from quirks_core.base.errors import QuirksError, UsageError
from quirks_core.base.text import one_line
from quirks_core.plan.records import Plan, Status

#: How the name of a run's private folder begins.
FOLDERS = "model-quirks-"
_LOGGER = logging.getLogger("model_quirks")
_START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


@dataclass(slots=True)
class Applied:
    """A plan in force in this process, and in every process that it starts.

    Attributes:
        plan: The plan.
        folder: Private folder in which the processes acknowledge.
        effects: What was changed in this process's environment.
        warnings: What may not have its full effect, in words.
    """

    plan: Plan
    folder: Path
    effects: list[Effect] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _environ: MutableMapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    _before: dict[str, str | None] = field(default_factory=dict, repr=False)

    def set(self, variable: str, value: str) -> None:
        """Sets an environment variable; `undo` restores it."""
        before = self._environ.get(variable)
        self._before.setdefault(variable, before)
        self._environ[variable] = value

    def undo(self) -> None:
        """Restores the environment, takes patches off in this process and removes the folder."""
        process.undo()
        for variable, before in self._before.items():
            if before is None:
                self._environ.pop(variable, None)
            else:
                self._environ[variable] = before
        self._before.clear()
        private_folder.remove(self.folder)


def apply(plan: Plan, *, environ: MutableMapping[str, str] | None = None) -> Applied:
    """Puts a plan into force in this process and hands it down to every process started from here.

    Call it before the first ``import vllm``: vLLM reads some variables while it is imported.

    Args:
        plan: A plan without refusals.
        environ: The environment to change; `os.environ` if None.

    Raises:
        RefusedError: The plan holds refusals; nothing was changed.
        UsageError: vLLM is told not to load our plugins in its processes; nothing was changed.
        QuirksError: Another plan is in force in this process, or no temporary folder can be made; nothing was changed.
    """
    plan.check()
    if (other := process.in_force()) is not None:
        raise QuirksError(
            f"plan {other[:12]}… is in force in this process, and an environment holds one plan at a time; "
            "shut that worker down first, or run the other one in a process of its own"
        )
    environ = os.environ if environ is None else environ
    check_engine_environment(environ)
    text = plan.for_processes.to_variable()
    applied = Applied(plan, private_folder.make(FOLDERS), _environ=environ)
    for slot, value in plan.changes.items():
        family, _, variable = slot.partition(".")
        if family == "env":
            applied.effects.append(Effect(slot=slot, before=environ.get(variable), after=value))
            applied.set(variable, value)
            if "vllm" in sys.modules:
                applied.warnings.append(f"{slot} was set after vLLM was imported; this process may not see it")
    applied.set(handed_down.PLAN_VARIABLE, text)
    applied.set(handed_down.FOLDER_VARIABLE, str(applied.folder))
    # A forked process takes over its parent's memory, vLLM's note that plugins are loaded included, and loads none.
    applied.set(_START_METHOD, "spawn")
    _log(plan)
    return applied


def _log(plan: Plan) -> None:
    """One line for everything that quirks do to this run, with the place to read on."""
    for item in plan.adjustments:
        if item.status is Status.APPLIED:
            who = ", ".join(f"{quirk.id} {quirk.reference}" for quirk in item.quirks)
            _LOGGER.info("%s: %r → %r (%s)", item.slot, plan.context.value(item.slot), item.value, one_line(who))
    for patch in plan.patches:
        _LOGGER.info("patch %s (%s)", patch.target, one_line(f"{patch.quirk.id} {patch.quirk.reference}"))


def check_engine_environment(environ: Mapping[str, str]) -> None:
    """Makes sure that vLLM will load our plugins in every process.

    Raises:
        UsageError: It will not: processes are forked, or VLLM_PLUGINS is set and does not name ours.
    """
    if environ.get(_START_METHOD) == "fork":
        raise UsageError(
            f"{_START_METHOD}=fork keeps quirks out of the engine's processes: a forked process loads no plugins; "
            "set it to spawn, or unset it"
        )
    names = environ.get("VLLM_PLUGINS")
    if names is None:
        return
    missing = [name for name in handed_down.VLLM_PLUGINS if name not in names.split(",")]
    if missing:
        wanted = ",".join(filter(None, [names, *missing]))
        raise UsageError(
            f"VLLM_PLUGINS={names!r} keeps quirks out of the engine's processes; set VLLM_PLUGINS={wanted!r}, or unset it"
        )
