"""The function that ``raw-weight-load`` puts into vLLM."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from quirks_plugins.weight_sync.partial_layer_patches import is_as_loaded

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger("model_quirks")
#: Plain tensors that attention, and a router on ROCm, make of a weight after it was loaded.
_ABSORBED = ("W_UK_T", "W_UV", "_bf16x3_weight")


def wrap_load_model(original: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """Make a running model warn once if its weights are loaded past the layerwise reload, and a kernel reads other tensors."""

    @wraps(original)
    def load_model(*args: Any, **kwargs: Any) -> torch.nn.Module:
        model = original(*args, **kwargs)
        if (load := getattr(model, "load_weights", None)) is not None:
            is_checked = False

            @wraps(load)
            def load_weights(*given: Any, **named: Any) -> Any:
                from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

                nonlocal is_checked
                if not is_checked and not get_layerwise_info(model).can_load():
                    is_checked = True
                    _warn(model)
                return load(*given, **named)

            model.load_weights = load_weights
        return model

    return load_model


def _warn(model: torch.nn.Module) -> None:
    found = [name for name, layer in model.named_modules() if _has_other_tensors(layer)]
    if found:
        _LOG.warning(
            "load_weights was called on the running model outside of a layerwise reload: %d layers (%s, …) keep their weights "
            "in a kernel's layout, and may now be wrong; call reload_weights, or start_weight_update before and "
            "finish_weight_update after it",
            len(found),
            found[0],
        )


def _has_other_tensors(layer: Any) -> bool:
    return not is_as_loaded(layer) or any(getattr(layer, name, None) is not None for name in _ABSORBED)
