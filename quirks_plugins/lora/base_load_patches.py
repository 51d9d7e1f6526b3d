"""The wrapper of the quirk on the base weights of an engine with LoRA.

Engine processes import this module; vllm is imported when the wrapper runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["wrap_load_lora_model"]

_PREFIX = "lora_base_layer_prefix"


def wrap_load_lora_model(load_lora_model: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Returns a `load_lora_model` whose model loads its base weights as it does without LoRA."""

    @functools.wraps(load_lora_model)
    def load_reloadable_model(self: Any, *args: Any, **kwargs: Any) -> nn.Module:
        model = load_lora_model(self, *args, **kwargs)
        load: Callable[..., Any] = model.load_weights

        @functools.wraps(load)
        def load_weights(weights: Iterable[tuple[str, torch.Tensor]], *args: Any, **kwargs: Any) -> Any:
            with _without_wrappers(model):
                return load(((name.replace(".base_layer.", "."), tensor) for name, tensor in weights), *args, **kwargs)

        model.load_weights = load_weights
        return model

    return load_reloadable_model


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
