"""model-quirks: declare, match, plan, apply and prove model quirks for vLLM."""

from __future__ import annotations

from quirks_core.adjustments import ABSENT, Advise, Default, Patch, Refuse, Require
from quirks_core.apply import Applied, apply
from quirks_core.context import ModelFacts, RunContext
from quirks_core.errors import (
    DeclarationError,
    PatchDriftError,
    QuirksError,
    ReceiptError,
    UsageError,
)
from quirks_core.flags import ModelFlag
from quirks_core.hookspecs import hookimpl
from quirks_core.match import (
    Fact,
    Match,
    environment,
    model_name,
    model_type,
    package,
    platform,
    purpose,
    setting,
    typed,
)
from quirks_core.plan import Plan, RefusedError
from quirks_core.quirk import PairedRun, Quirk, Severity, StaticProbe, fix, report
from quirks_core.receipt import Receipt
from quirks_core.registry import Registry, discover
from quirks_core.resolve import Loaded, resolve
from quirks_core.slots import SLOTS, Slot
from quirks_core.switches import Switches
from quirks_core.trace import Answer
from quirks_core.versions import Affected

__all__ = [
    "ABSENT",
    "SLOTS",
    "Advise",
    "Affected",
    "Answer",
    "Applied",
    "DeclarationError",
    "Default",
    "Fact",
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
    "StaticProbe",
    "Switches",
    "UsageError",
    "apply",
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
    "resolve",
    "setting",
    "typed",
]
