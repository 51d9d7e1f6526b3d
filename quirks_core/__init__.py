"""model-quirks: declare, match, plan, apply and prove model quirks for vLLM.

The names below are imported when they are first asked for, so that ``quirks list`` needs neither pydantic nor pluggy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quirks_core.adjustments import Advise, Default, Patch, Refuse, Require
    from quirks_core.apply import Applied
    from quirks_core.context import ModelFacts, RunContext
    from quirks_core.discovery import Discovered, discover
    from quirks_core.errors import DeclarationError, PatchDriftError, QuirksError, ReceiptError, UsageError
    from quirks_core.examples import Example
    from quirks_core.fingerprints import ABSENT
    from quirks_core.flags import ModelFlag
    from quirks_core.hookspecs import hookimpl
    from quirks_core.loaded import Loaded
    from quirks_core.match import Fact, Match, environment, model_name, model_type, package, platform, purpose, setting, typed
    from quirks_core.plan import Plan, RefusedError
    from quirks_core.probes import FingerprintProbe, StaticProbe, SymbolProbe
    from quirks_core.quirk import PairedRun, Quirk, Severity, fix, report
    from quirks_core.receipt import Receipt
    from quirks_core.registry import Registry
    from quirks_core.slots import SLOTS, Slot, SlotKind
    from quirks_core.switches import Switches, Wishes
    from quirks_core.trace import Answer
    from quirks_core.versions import Affected

_HOMES = {
    "ABSENT": "fingerprints",
    "SLOTS": "slots",
    "Advise": "adjustments",
    "Affected": "versions",
    "Answer": "trace",
    "Applied": "apply",
    "DeclarationError": "errors",
    "Default": "adjustments",
    "Discovered": "discovery",
    "Example": "examples",
    "Fact": "match",
    "FingerprintProbe": "probes",
    "Loaded": "loaded",
    "Match": "match",
    "ModelFacts": "context",
    "ModelFlag": "flags",
    "PairedRun": "quirk",
    "Patch": "adjustments",
    "PatchDriftError": "errors",
    "Plan": "plan",
    "Quirk": "quirk",
    "QuirksError": "errors",
    "Receipt": "receipt",
    "ReceiptError": "errors",
    "Refuse": "adjustments",
    "RefusedError": "plan",
    "Registry": "registry",
    "Require": "adjustments",
    "RunContext": "context",
    "Severity": "quirk",
    "Slot": "slots",
    "SlotKind": "slots",
    "StaticProbe": "probes",
    "Switches": "switches",
    "SymbolProbe": "probes",
    "UsageError": "errors",
    "Wishes": "switches",
    "discover": "discovery",
    "environment": "match",
    "fix": "quirk",
    "hookimpl": "hookspecs",
    "model_name": "match",
    "model_type": "match",
    "package": "match",
    "platform": "match",
    "purpose": "match",
    "report": "quirk",
    "setting": "match",
    "typed": "match",
}

__all__ = [
    "ABSENT",
    "SLOTS",
    "Advise",
    "Affected",
    "Answer",
    "Applied",
    "DeclarationError",
    "Default",
    "Discovered",
    "Example",
    "Fact",
    "FingerprintProbe",
    "Loaded",
    "Match",
    "ModelFacts",
    "ModelFlag",
    "PairedRun",
    "Patch",
    "PatchDriftError",
    "Plan",
    "Quirk",
    "QuirksError",
    "Receipt",
    "ReceiptError",
    "Refuse",
    "RefusedError",
    "Registry",
    "Require",
    "RunContext",
    "Severity",
    "Slot",
    "SlotKind",
    "StaticProbe",
    "Switches",
    "SymbolProbe",
    "UsageError",
    "Wishes",
    "discover",
    "environment",
    "fix",
    "hookimpl",
    "model_name",
    "model_type",
    "package",
    "platform",
    "purpose",
    "report",
    "setting",
    "typed",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'quirks_core' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"quirks_core.{_HOMES[name]}"), name)
    globals()[name] = value  # the next time Python finds it without asking
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
