"""Quirks for an engine that a program starts by itself: resolve, apply, receipt.

::

    with quirks_for(AsyncEngineArgs(model), purpose="rollout") as applied:
        engine = AsyncLLM.from_engine_args(applied.engine_args, usage_context=UsageContext.LLM_CLASS)
        print(applied.receipt())
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quirks_core.apply.handed_down import HOOK_VARIABLE
from quirks_core.base import private_folder
from quirks_core.base.errors import ReceiptError, UsageError
from quirks_core.configuration.config import Purpose
from quirks_core.configuration.slots import ENGINE
from quirks_core.hook import processes, receipts, seam, seams, typed
from quirks_core.hook.arguments import identity, put
from quirks_core.hook.receipts import EngineReceipt
from quirks_core.hook.settings import RECEIPT_VARIABLE, HookSettings, problem_of_told
from quirks_core.plan.records import Plan

_FOLDERS = "model-quirks-door-"


@dataclass(frozen=True, slots=True)
class AppliedQuirks:
    """A plan in force for the engines that are started from its arguments.

    Attributes:
        plan: The plan, with what is advised, and what the user's values kept from being set.
        engine_args: The arguments to start the engine from.
    """

    plan: Plan
    engine_args: Any
    _file: Path

    def receipt(self) -> tuple[EngineReceipt, ...]:
        """Returns the receipts of the engines that are up, one for each engine core on this machine.

        Raises:
            ReceiptError: None is up; or the file of receipts cannot be read.
        """
        found = receipts.read(self._file)
        mine = tuple(one for one in found.engines if one.digest == self.plan.digest)
        if not mine:
            why = f": {'; '.join(found.problems)}" if found.problems else "; start one from applied.engine_args first"
            raise ReceiptError(f"no engine on this machine has put plan {self.plan.digest[:12]}… in force{why}")
        return mine


@contextmanager
def quirks_for(
    engine_args: Any,
    *,
    purpose: Purpose,
    told: Mapping[str, Any] | None = None,
    typed_arguments: Iterable[str] | None = None,
) -> Iterator[AppliedQuirks]:
    """Plans for an engine, and puts the plan into force until the end of the block.

    Start the engine, and shut it down, inside of the block: processes that an engine starts later find the plan there.

    Args:
        engine_args: vLLM's ``EngineArgs`` or ``AsyncEngineArgs``; it is not changed.
        purpose: ``rollout`` (a trainer will update weights), ``eval`` or ``serve``.
        told: Values by slot of what the program around the engine does: ``{"refit.scope": "parameters"}``.
        typed_arguments: Names of the arguments that the user chose; those that are not at their defaults if None.

    Yields:
        The plan in force.

    Raises:
        RefusedError: The plan holds refusals; nothing was changed.
        UsageError: A slot that is told makes no sense, the model cannot be read, or the installed vLLM is not one that this was
            written for.
        QuirksError: Another engine of this process has other patches or variables; nothing was changed.
    """
    if problem := seams.problem():
        raise UsageError(problem)
    told = dict(told or {})
    if problems := [problem for slot, value in told.items() if (problem := problem_of_told(slot, value))]:
        raise UsageError("; ".join(problems))
    mine = copy.copy(engine_args)
    typed.tell(
        mine, typed.typed_in(engine_args) if typed_arguments is None else typed.Typed(frozenset(typed_arguments), "", True)
    )
    put(mine, {slot: value for slot, value in told.items() if slot.startswith(ENGINE)})
    folder = private_folder.make(_FOLDERS)
    try:
        file = folder / "receipts.json"
        settings = HookSettings(purpose=purpose, told=told, receipt=file)
        plan = seam.resolve(mine, settings, purpose)
        variables = {HOOK_VARIABLE: purpose, RECEIPT_VARIABLE: str(file)}
        seam.apply(mine, plan, settings, identity(mine), variables=variables)
        processes.install()  # for cores that run in this process, or are forked from it
        yield AppliedQuirks(plan, mine, file)
    finally:
        seam.undo()
        private_folder.remove(folder)
