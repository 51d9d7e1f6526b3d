"""Puts the hook on in a process of vLLM that has loaded our plugin."""

from __future__ import annotations

import os
from typing import Any

from quirks_core import process
from quirks_core.handed_down import PLAN_VARIABLE
from quirks_core.hook import processes, seam, typed
from quirks_core.hook.imports import when_imported
from quirks_core.hook.settings import HookSettings
from quirks_core.plan import ProcessPlan

_done = False


def start(carried: Any = None) -> None:
    """Carries out the plan of the process that started this one, if there is one, and puts the wrappers on.

    Args:
        carried: The plan in the configuration of the engine that is loading plugins; None if there is none.

    Raises:
        UsageError: A variable of ours has a value that it cannot have.
        QuirksError: The plan cannot be carried out here.
    """
    global _done
    settings = HookSettings.read()
    if carried is not None:
        process.carry_out(ProcessPlan.model_validate(carried))
    elif settings is not None and (text := os.environ.get(PLAN_VARIABLE)) is not None:
        process.carry_out(ProcessPlan.read(text, f"handed down in {PLAN_VARIABLE}"))
    elif settings is None:
        return
    processes.install()
    if _done or settings is None:
        return
    _done = True
    typed.watch()
    typed.look_at_first_call()
    when_imported("vllm.engine.arg_utils", seam.install)
