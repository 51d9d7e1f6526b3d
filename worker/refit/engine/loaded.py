"""The names under which an engine reports what it loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

#: The module that holds a MoE layer's experts.
_EXPERTS = "routed_experts"


def first_names(model: nn.Module) -> dict[str, str]:
    """Returns the first name of every parameter by each of its names: parts of a model share some.

    Seen in vLLM's Transformers backend: a router is ``mlp.experts.gate`` as well, and loaders report ``mlp.gate``.
    """
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    return {name: first.setdefault(id(parameter), name) for name, parameter in named}


def own_names(loaded: Iterable[str], wanted: Collection[str], first: Mapping[str, str]) -> set[str]:
    """Returns what was loaded by the names of the model's own parameters.

    Seen in vLLM 0.26: a MoE layer reports ``experts.w13_weight`` for its parameter ``experts.routed_experts.w13_weight``. In
    0.32 it reports the latter.

    Args:
        loaded: The names that the model's ``load_weights`` gave.
        wanted: The names of its parameters.
        first: What `first_names` returned.
    """
    known = (first.get(name, name) for name in loaded)
    return {name if name in wanted or (full := _inside(name)) not in wanted else full for name in known}


def _inside(name: str) -> str:
    module, _, parameter = name.rpartition(".")
    return f"{module}.{_EXPERTS}.{parameter}"
