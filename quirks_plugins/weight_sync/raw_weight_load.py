"""Weights that a program loads into a running model past vLLM's layerwise reload: kernels read other tensors.

What happens: from the second weight update on the policy generates garbage, or the load fails with an error about shapes.
Programs with an extension of the worker call the model's own ``load_weights``. That is right at the start only: after it, vLLM
turns the weights of MoE and quantised layers into a kernel's layout, and absorbs a matrix of latent attention into plain
tensors (vllm-project/vllm#42821; NovaSky-AI/SkyRL#1680, verl-project/verl#7978). Dense bfloat16 models are loaded rightly in
this way, and bfloat16 experts on a Hopper GPU, where vLLM takes Triton's kernels (read in 0.24 to 0.33). This quirk warns, and
cures nothing.

When it can go: when vLLM's models refuse such a call, or make it a reload.

Evidence: none, because the quirk changes no output; a test loads a model past vLLM's reload, and within it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from quirks_core import Affected, Patch, Quirk, Severity, no, platform, purpose, report, unknown, yes
from quirks_plugins.conditions import our_worker
from quirks_plugins.weight_sync.partial_layer_patches import is_as_loaded

if TYPE_CHECKING:
    import torch

QUIRK = Quirk(
    id="raw-weight-load",
    title="Nothing warns of weights loaded into a running model past the layerwise reload, where kernels read other tensors",
    match=purpose("rollout") & ~our_worker & ~platform("cpu"),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Patch(
        "vllm.model_executor.model_loader.base_loader:BaseModelLoader.load_model",
        wrapper="quirks_plugins.weight_sync.raw_weight_load:wrap_load_model",
        expects=("5c00f43731f8", "b95fd04df01f", "ee1975c78da7", "939e4d07443b", "8579297b4f00", "39c27f400e70"),
        reason="a load past the layerwise reload shows nowhere",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#42821"), report("NovaSky-AI/SkyRL#1680"), report("verl-project/verl#7978")],
    examples=[
        yes("qwen3_moe", vllm="0.32.0", platform="cuda", patches="BaseModelLoader.load_model"),
        no("qwen3_moe", vllm="0.32.0", platform="cpu"),
        no("qwen3_moe", {"engine.generate_from_dummy": False}, vllm="0.32.0", platform="cuda"),
        no("qwen3_moe", vllm="0.32.0", platform="cuda", purpose="serve"),
        unknown("qwen3_moe", vllm="0.32.0"),
    ],
    cost="one look at the model's layers at the first such load, and 1 µs for each call of load_weights",
)

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
