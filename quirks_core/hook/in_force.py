"""Quirks for an engine that a program starts by itself: resolve, apply, receipt.

::

    with quirks_for(AsyncEngineArgs(model), purpose="rollout") as applied:
        engine = AsyncLLM.from_engine_args(applied.engine_args, usage_context=UsageContext.LLM_CLASS)
        print(applied.receipt())
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quirks_core.apply import process
from quirks_core.apply.handed_down import HOOK_VARIABLE
from quirks_core.base import private_folder
from quirks_core.base.errors import QuirksError, ReceiptError, UsageError
from quirks_core.base.text import one_line
from quirks_core.configuration.config import Purpose
from quirks_core.configuration.slots import Place, placed
from quirks_core.hook import engine_config, explicit, processes, receipts, vllm_functions
from quirks_core.hook.arguments import identity, put
from quirks_core.hook.settings import RECEIPT_VARIABLE, HookSettings, problem_of_given
from quirks_core.plan.receipt import Receipt
from quirks_core.plan.records import Plan
from quirks_core.reporting.plan import LIBRARY, findings

#: How the name of a run's private folder begins.
RUNS = "model-quirks-"
_FILE = "receipts.json"
_LOGGER = logging.getLogger("model_quirks")
#: The plan of the block that this process is in, if it is in one.
_current: list[Plan] = []


@dataclass(frozen=True, slots=True)
class AppliedQuirks:
    """A plan in force in this process, and in every process of the engines that are started with it.

    Attributes:
        plan: The plan.
        folder: A private folder of this plan, removed at its end.
        warnings: What may not have its full effect, in words.
        engine_args: The arguments to start the engine from, for which it was planned (`quirks_for`); else None.
    """

    plan: Plan
    folder: Path
    warnings: tuple[str, ...] = ()
    engine_args: Any = None

    def carried_by(self, engine_args: Any) -> Any:
        """Returns a copy of an engine's arguments that has the plan's values, and carries the plan to all its processes."""
        mine = copy.copy(engine_args)
        engine_config.carry(mine, self.plan.for_processes)
        return mine

    def problems(self) -> tuple[str, ...]:
        """Returns why engines got no receipt; error as for `receipt`."""
        return receipts.read(self.folder / _FILE).problems

    def receipt(self) -> tuple[Receipt, ...]:
        """Returns the receipts of the engines that are up, one for each engine core on this machine.

        Raises:
            ReceiptError: None is up, or one cannot have a receipt; or the file of receipts cannot be read.
        """
        found = receipts.read(self.folder / _FILE)
        mine = tuple(one for one in found.engines if one.digest == self.plan.digest)
        if not mine or found.problems:
            why = f": {'; '.join(found.problems)}" if found.problems else "; start one from the arguments that carry it first"
            raise ReceiptError(f"no engine on this machine has put plan {self.plan.digest[:12]}… in force{why}")
        return mine


@contextmanager
def in_force(plan: Plan, variables: Mapping[str, str] | None = None) -> Iterator[AppliedQuirks]:
    """Puts a plan into force until the end of the block: the one way of a plan into an engine.

    Enter it before the first ``import vllm`` if the plan sets variables, some of which vLLM reads while it is imported. Start
    the engine from arguments that carry the plan, and shut it down, inside of the block.

    Raises:
        RefusedError: The plan holds refusals; nothing was changed.
        UsageError: vLLM is set not to load our plugins in its processes; nothing was changed.
        QuirksError: An engine of this process has a plan, or no temporary folder can be made; nothing was changed.
    """
    plan.check()
    process.check_engine_environment(os.environ)
    # The end of the block takes patches and variables from every engine of this process.
    for digest in [other.digest for other in _current] + [other.digest for other in engine_config.engines()]:
        raise QuirksError(
            f"plan {digest[:12]}… is in force in this process, and a process has one plan at a time; shut that engine down "
            "first, or start this one in a process of its own"
        )
    folder = private_folder.make(RUNS)
    try:
        file = str(folder / _FILE)
        purpose, for_processes = plan.context.purpose, plan.for_processes
        warnings = engine_config.hand_down(for_processes, {**(variables or {}), HOOK_VARIABLE: purpose, RECEIPT_VARIABLE: file})
        _current.append(plan)
        process.carry_out(for_processes)
        processes.install()  # for cores that run in this process, or are forked from it
        engine_config.install()  # it holds the engine's configuration against the plan
        for one in findings(plan, LIBRARY):
            _LOGGER.info("%s", one_line(str(one)))
        yield AppliedQuirks(plan, folder, warnings)
    finally:
        _current.clear()
        engine_config.undo()
        private_folder.remove(folder)


@contextmanager
def quirks_for(
    engine_args: Any,
    *,
    purpose: Purpose,
    given: Mapping[str, Any] | None = None,
    typed_arguments: Iterable[str] | None = None,
) -> Iterator[AppliedQuirks]:
    """Plans for an engine, and puts the plan into force until the end of the block.

    Start the engine, and shut it down, inside of the block: processes that an engine starts later find the plan there.

    Args:
        engine_args: vLLM's ``EngineArgs`` or ``AsyncEngineArgs``; it is not changed.
        purpose: ``rollout`` (a trainer will update weights), ``eval`` or ``serve``.
        given: Values by slot of what the program around the engine does: ``{"refit.scope": "parameters"}``.
        typed_arguments: Names of the arguments that the user chose; those that are not at their defaults if None.

    Yields:
        The plan in force.

    Raises:
        RefusedError: The plan holds refusals; nothing was changed.
        UsageError: A given slot makes no sense, the model cannot be read, or the installed vLLM is not one that this was
            written for.
        QuirksError: Another engine of this process has other patches or variables; nothing was changed.
    """
    if problem := vllm_functions.problem():
        raise UsageError(problem)
    given = dict(given or {})
    if problems := [problem for slot, value in given.items() if (problem := problem_of_given(slot, value))]:
        raise UsageError("; ".join(problems))
    mine = copy.copy(engine_args)
    explicit.declare(
        mine,
        explicit.typed_in(engine_args) if typed_arguments is None else explicit.Typed(frozenset(typed_arguments), exact=True),
    )
    put(mine, given)
    settings = HookSettings(purpose=purpose, given=given)
    plan = engine_config.resolve(mine, settings, purpose)
    engine_config.check_refusals(mine, plan)
    with in_force(plan, {**placed(Place.VARIABLE, given), engine_config.PLANNED_FOR: identity(mine)}) as applied:
        yield replace(applied, engine_args=applied.carried_by(mine))
