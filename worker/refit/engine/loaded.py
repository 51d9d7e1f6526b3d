"""The names under which an engine reports what it loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

#: The module that holds a MoE layer's experts.
_EXPERTS = "routed_experts"
#: The module that holds the layer itself where vLLM has wrapped it for LoRA.
_WRAPPED = ".base_layer."


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
    0.32 it reports the latter. Of a layer that is wrapped for LoRA, it reports the parameter's name without the wrapper (0.28).

    Args:
        loaded: The names that the model's ``load_weights`` gave.
        wanted: The names of its parameters.
        first: What `first_names` returned.
    """
    full = {unwrapped(name): name for name in first}

    def own(name: str) -> str:
        for candidate in (name, _inside(name)):
            known = full.get(candidate, candidate)
            if (found := first.get(known, known)) in wanted:
                return found
        return name

    return {own(name) for name in loaded}


def unwrapped(name: str) -> str:
    """Returns the name of a tensor or module as it is in an engine without LoRA."""
    return f"{name}.".replace(_WRAPPED, ".")[:-1]


def _inside(name: str) -> str:
    module, _, parameter = name.rpartition(".")
    return f"{module}.{_EXPERTS}.{parameter}"
