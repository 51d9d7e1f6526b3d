"""The trainer's side of a refit: what to send, and the ways to send it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from worker.refit.weights.manifest import Manifest
from worker.refit.weights.scope import RefitScope, tensors

if TYPE_CHECKING:
    from quirks_core.plan.contract import Contract
    from worker.refit.agreement import agree
    from worker.refit.arrivals import Arrival, Arrivals
    from worker.refit.transport.collective import CollectiveSender
    from worker.refit.transport.ipc_zmq import send as send_ipc_zmq
    from worker.refit.trl_callback import LedgerCallback
    from worker.refit.weights.expected import digest
    from worker.refit.weights.source import Source

__all__ = [
    "Arrival",
    "Arrivals",
    "CollectiveSender",
    "Contract",
    "LedgerCallback",
    "Manifest",
    "RefitScope",
    "Source",
    "agree",
    "digest",
    "send_ipc_zmq",
    "tensors",
]

_LAZY = {
    "Arrival": ("worker.refit.arrivals", "Arrival"),
    "Arrivals": ("worker.refit.arrivals", "Arrivals"),
    "CollectiveSender": ("worker.refit.transport.collective", "CollectiveSender"),
    "Contract": ("quirks_core.plan.contract", "Contract"),
    "LedgerCallback": ("worker.refit.trl_callback", "LedgerCallback"),
    "Source": ("worker.refit.weights.source", "Source"),
    "agree": ("worker.refit.agreement", "agree"),
    "digest": ("worker.refit.weights.expected", "digest"),
    "send_ipc_zmq": ("worker.refit.transport.ipc_zmq", "send"),
}


def __getattr__(name: str) -> Any:
    """Imports a transport at its first use: transports need torch."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)
