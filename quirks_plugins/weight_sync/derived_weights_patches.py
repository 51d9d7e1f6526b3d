"""The function that ``derived-weights-refit`` puts into vLLM.

Only engine processes import this module; vLLM and torch are imported when a function runs, because a patch may come into force
while vLLM is being imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import torch

__all__ = ["wrap_finalize", "wrap_initialize"]

#: A method of models that make such a copy at the end of every ``load_weights``, when a reload has not written the weights yet.
_MAKES = "finalize_mhc_broadcast_weights"
#: What it makes: a new tensor each time, up to vLLM 0.28.
_BROADCAST = "hc_attn_fn_broadcast"
_first: WeakKeyDictionary[Any, torch.Tensor] = WeakKeyDictionary()
#: The attribute of MuseSpark's runner of experts that holds what comes after them, which is no module.
_FINALIZE = "post_expert_finalize"


def wrap_initialize(original: Callable[..., None]) -> Callable[..., None]:
    """Remember the tensors that CUDA graphs read, before a model puts others in their place."""

    @wraps(original)
    def initialize_layerwise_reload(model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        for module in model.modules():
            if (made := getattr(module, _BROADCAST, None)) is not None:
                _first.setdefault(module, made)
        original(model, *args, **kwargs)

    return initialize_layerwise_reload


def wrap_finalize(original: Callable[..., None]) -> Callable[..., None]:
    """Make the end of a reload write the new weights into the copies, too; their memory stays, as CUDA graphs read it."""

    @wraps(original)
    def finalize_layerwise_processing(model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        import torch

        original(model, *args, **kwargs)
        with torch.inference_mode():  # a copy that was made in a forward pass takes no other writes
            for module in model.modules():
                for name, made in _MADE.items():
                    if isinstance(copy := getattr(module, name, None), torch.Tensor):
                        copy.copy_(made(module))
                if hasattr(module, _MAKES):
                    getattr(module, _MAKES)()
                _renew_norm(getattr(module, _FINALIZE, None))
            for module in model.modules():
                if (first := _first.get(module)) is not None and first is not getattr(module, _BROADCAST):
                    setattr(module, _BROADCAST, first.copy_(getattr(module, _BROADCAST)))

    return finalize_layerwise_processing


def _renew_norm(finalize: Any) -> None:
    """MuseSpark's experts keep the weight of the norm after them in the dtype of the activations."""
    import torch

    if isinstance(copy := getattr(finalize, "_fused_weight", None), torch.Tensor) and finalize._norm.has_weight:
        copy.copy_(finalize._norm.weight)


def _gates(runner: Any) -> torch.Tensor:
    import torch

    return torch.cat([runner.gate.weight, runner.shared_expert_gate.weight])


def _convolutions(attention: Any) -> torch.Tensor:
    import torch

    layers = (attention.q_conv1d, attention.k_conv1d, attention.v_conv1d)
    return torch.cat([layer.weight.view(layer.weight.size(0), layer.weight.size(2)) for layer in layers])


def _head_gate(indexer: Any) -> torch.Tensor:
    weight: torch.Tensor = indexer.wk_weights_proj.weight.data[indexer.head_dim :]
    return weight.t()


#: How vLLM makes each copy, by the attribute that holds it: None before the first forward pass.
_MADE: Mapping[str, Callable[[Any], torch.Tensor]] = {
    "_combined_gate_weight": _gates,
    "_merged_conv_weight": _convolutions,
    "_wp_fp32": _head_gate,
}
