"""Puts the hook on in a process of vLLM that has loaded our plugin."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from quirks_core.apply import process
from quirks_core.apply.handed_down import FOLDER_VARIABLE, PLAN_VARIABLE
from quirks_core.base.errors import QuirksError
from quirks_core.facts.installation import check_ours
from quirks_core.hook import engine_config, explicit, processes
from quirks_core.hook.settings import HookSettings
from quirks_core.plan.records import ProcessPlan

_before: Callable[..., Any] | None = None


def start(carried: Any = None) -> None:
    """Puts on the wrappers and the plan of the engine that is loading plugins, or of the process that started this one.

    Raises:
        UsageError: A variable of ours has a value that it cannot have.
        QuirksError: The plan cannot be carried out here.
    """
    _without_tracebacks()
    if folder := os.environ.get(FOLDER_VARIABLE):  # its workers call functions of the package `worker`
        check_ours("worker")
        process.keep_errors(Path(folder))
    settings = HookSettings.read()
    if carried is not None:
        process.carry_out(ProcessPlan.model_validate(carried))
    elif settings is not None and (text := os.environ.get(PLAN_VARIABLE)) is not None:
        process.carry_out(ProcessPlan.read(text, f"handed down in {PLAN_VARIABLE}"))
    elif settings is None:
        return
    processes.install()
    if settings is not None:
        explicit.watch()
        engine_config.install()


def _without_tracebacks() -> None:
    """Has Python show an error of ours that nothing catches without the forty lines of traceback through vLLM."""
    global _before
    if _before is None:  # a second wrapper around another program's would never end
        _before, sys.excepthook = sys.excepthook, _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, QuirksError):
        error.__cause__ = error.__context__ = trace = None
        error = error.with_traceback(None)
    (_before or sys.__excepthook__)(kind, error, trace)
