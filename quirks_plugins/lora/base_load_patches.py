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
_PREFIX = "lora_base_layer_prefix"


def wrap_load_lora_model(load_lora_model: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Returns a `load_lora_model` whose model loads its base weights as it does without LoRA."""

    @functools.wraps(load_lora_model)
    def load_reloadable_model(self: Any, *args: Any, **kwargs: Any) -> nn.Module:
        model = load_lora_model(self, *args, **kwargs)
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
        with _without_wrappers(model):
            return load(model, ((name.replace(".base_layer.", "."), tensor) for name, tensor in weights), *args, **kwargs)

    setattr(load_weights, _MARK, True)
    return load_weights


@contextmanager
def _without_wrappers(model: nn.Module) -> Iterator[None]:
    """Puts the layers themselves in the place of LoRA's wrappers around them."""
    from vllm.lora.layers import BaseLayerWithLoRA

    wrapped = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, BaseLayerWithLoRA)
    ]
    experts = [(layer, prefix) for layer in model.modules() if (prefix := getattr(layer, _PREFIX, ""))]
    try:
        for parent, name, child in wrapped:
            parent._modules[name] = child.base_layer
        for layer, _ in experts:
            setattr(layer, _PREFIX, "")
        yield
    finally:
        for parent, name, child in wrapped:
            parent._modules[name] = child
        for layer, prefix in experts:
            setattr(layer, _PREFIX, prefix)
