"""The functions that ``unnamed-weight-loader``, ``made-buffers-refit`` and ``transformers-backend-head-bias`` put into vLLM.

They mend vLLM's layerwise reload.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def wrap_get_weight_loader(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make every weight loader have a name: the reload knows its own loaders by theirs."""

    @wraps(original)
    def _get_weight_loader(tensor: torch.Tensor) -> Any:
        loader = original(tensor)
        if isinstance(loader, partial) and not hasattr(loader, "__name__"):
            loader.__name__ = getattr(loader.func, "__name__", "partial")  # type: ignore[attr-defined]
        return loader

    return _get_weight_loader


def wrap_place(original: Callable[..., None]) -> Callable[..., None]:
    """Make the buffers that a layer made of its weights take their new values, in the memory that they had before.

    vLLM knows a layer's tensors as they were before its first load (``restore_metadata``): others were made afterwards.
    """

    @wraps(original)
    def _place_kernel_tensors(layer: torch.nn.Module, info: Any) -> None:
        import torch

        before = info.kernel_tensors[1]
        for name in info.kernel_non_persistent_buffers & before.keys() - info.restore_metadata[1].keys():
            made = getattr(layer, name, None)
            if isinstance(made, torch.Tensor) and made is not before[name]:
                before[name].data.copy_(made)
            layer.__dict__.pop(name, None)  # assigned to a buffer that the reload had removed, it was none
        original(layer, info)

    return _place_kernel_tensors


def wrap_load_head(original: Callable[..., set[str]]) -> Callable[..., set[str]]:
    """Make a head keep the bias ``[padded vocabulary]`` that it first gets in a reload.

    At the end of a reload a layer gets back the tensors that it had before, with new values, and loses all others.
    """

    @wraps(original)
    def load_weights(self: Any, *args: Any, **kwargs: Any) -> set[str]:
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        loaded = original(self, *args, **kwargs)
        bias = getattr(self.lm_head, "bias", None)
        info = get_layerwise_info(self.lm_head)
        if bias is not None and info.can_load() and info.kernel_tensors is not None:
            info.kernel_tensors[0].setdefault("bias", bias)
        return loaded

    return load_weights
