"""The wrapper of the quirk on the base weights of an engine with LoRA.

Engine processes import this module; vllm is imported when the wrapper runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["wrap_load_lora_model"]

_MARK = "_model_quirks_takes_plain_names"
_WRAPPERS = "_model_quirks_lora_wrappers"
_PREFIX = "lora_base_layer_prefix"


def wrap_load_lora_model(load_lora_model: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Returns a `load_lora_model` whose model loads its base weights as it does without LoRA."""

    @functools.wraps(load_lora_model)
    def load_reloadable_model(self: Any, *args: Any, **kwargs: Any) -> nn.Module:
        model = load_lora_model(self, *args, **kwargs)
        setattr(model, _WRAPPERS, _wrappers(model))  # a trainer may load thousands of tensors one by one
        kind: Any = type(model)
        if not hasattr(kind.load_weights, _MARK):
            kind.load_weights = _taking_plain_names(kind.load_weights)
        if (load := vars(model).get("load_weights")) is not None:  # another patch has put it onto this model
            model.load_weights = MethodType(_taking_plain_names(lambda _, *args, **kwargs: load(*args, **kwargs)), model)
        return model

    return load_reloadable_model


def _taking_plain_names(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def load_weights(model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]], *args: Any, **kwargs: Any) -> Any:
        if _WRAPPERS not in vars(model):  # of an engine without LoRA
            return load(model, weights, *args, **kwargs)
        with _without_wrappers(*vars(model)[_WRAPPERS]):
            return load(model, ((name.replace(".base_layer.", "."), tensor) for name, tensor in weights), *args, **kwargs)

    setattr(load_weights, _MARK, True)
    return load_weights


def _wrappers(model: nn.Module) -> tuple[list[tuple[Any, str, Any, Any]], list[tuple[dict[str, Any], str]]]:
    """Finds LoRA's wrappers and their layers, by their place, and the prefixes of experts."""
    from vllm.lora.layers import BaseLayerWithLoRA

    layers = list(model.modules())
    wrapped = [
        (parent._modules, name, child, child.base_layer)
        for parent in layers
        for name, child in parent.named_children()
        if isinstance(child, BaseLayerWithLoRA)
    ]
    return wrapped, [(vars(layer), prefix) for layer in layers if (prefix := vars(layer).get(_PREFIX))]


@contextmanager
def _without_wrappers(wrapped: list[tuple[Any, str, Any, Any]], experts: list[tuple[dict[str, Any], str]]) -> Iterator[None]:
    """Puts the layers themselves in the place of LoRA's wrappers around them."""
    try:
        for place, name, _, layer in wrapped:
            place[name] = layer
        for attributes, _ in experts:
            attributes[_PREFIX] = ""
        yield
    finally:
        for place, name, wrapper, _ in wrapped:
            place[name] = wrapper
        for attributes, prefix in experts:
            attributes[_PREFIX] = prefix
