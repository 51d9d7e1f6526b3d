"""The names under which an engine reports what it loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterable

#: The module that holds a MoE layer's experts.
_EXPERTS = "routed_experts"


def own_names(loaded: Iterable[str], wanted: Collection[str]) -> set[str]:
    """Returns what was loaded by the names of the model's own parameters.

    Seen in vLLM 0.26: a MoE layer reports ``experts.w13_weight`` for its parameter ``experts.routed_experts.w13_weight``. In
    0.32 it reports the latter.

    Args:
        loaded: The names that the model's ``load_weights`` gave.
        wanted: The names of its parameters.
    """
    return {name if name in wanted or (full := _inside(name)) not in wanted else full for name in loaded}


def _inside(name: str) -> str:
    module, _, parameter = name.rpartition(".")
    return f"{module}.{_EXPERTS}.{parameter}"
