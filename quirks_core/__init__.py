"""model-quirks: declare, match, plan, apply and prove model quirks for vLLM.

This package exports the names that authors of quirks need; import everything else from its module. A name is imported on first
access, so ``quirks list`` imports neither pydantic nor pluggy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quirks_core.declaration.adjustments import Advise, Default, Patch, Refuse, Require
    from quirks_core.declaration.examples import no, unknown, yes
    from quirks_core.declaration.flags import Kind, ModelFlag
    from quirks_core.declaration.match import (
        Fact,
        Match,
        described,
        environment,
        model_name,
        model_type,
        package,
        platform,
        purpose,
        setting,
        typed,
    )
    from quirks_core.declaration.probes import StaticProbe, SymbolProbe
    from quirks_core.declaration.quirk import PairedRun, Quirk, Severity, fix, report
    from quirks_core.declaration.versions import Affected
    from quirks_core.facts.context import RunContext
    from quirks_core.hook.in_force import AppliedQuirks, quirks_for
    from quirks_core.plan.records import Plan
    from quirks_core.plugins.hookspecs import hookimpl

_HOMES = {
    "declaration.adjustments": ("Advise", "Default", "Patch", "Refuse", "Require"),
    "declaration.examples": ("no", "unknown", "yes"),
    "facts.context": ("RunContext",),
    "declaration.flags": ("Kind", "ModelFlag"),
    "hook.in_force": ("AppliedQuirks", "quirks_for"),
    "plugins.hookspecs": ("hookimpl",),
    "declaration.match": (
        "Fact", "Match", "described", "environment", "model_name", "model_type", "package", "platform", "purpose", "setting",
        "typed",
    ),
    "plan.records": ("Plan",),
    "declaration.probes": ("StaticProbe", "SymbolProbe"),
    "declaration.quirk": ("PairedRun", "Quirk", "Severity", "fix", "report"),
    "declaration.versions": ("Affected",),
}  # fmt: skip
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Advise", "Affected", "AppliedQuirks", "Default", "Fact", "Kind", "Match", "ModelFlag", "PairedRun",
    "Patch", "Plan", "Quirk", "Refuse", "Require", "RunContext", "Severity", "StaticProbe", "SymbolProbe", "described",
    "environment", "fix", "hookimpl", "model_name", "model_type", "no", "package", "platform", "purpose", "quirks_for",
    "report", "setting", "typed", "unknown", "yes",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'quirks_core' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"quirks_core.{_MODULES[name]}"), name)
    globals()[name] = value  # so that Python finds it directly the next time
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
