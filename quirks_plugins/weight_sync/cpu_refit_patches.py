"""The functions that ``cpu-tied-head-refit``, ``cpu-moe-experts-refit`` and ``cpu-convolution-refit`` put into vLLM.

vLLM's CPU kernels read weights in a packed form, which vLLM makes after a layer's weights have been loaded. A refit brings the
new weights in, and leaves out the packing in two places, and the plain form beside the packed one in a third.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Attribute of a convolution's layer: its weights ``[channels, 1, width]`` as they were before they were packed at the start.
_PLAIN = "_model_quirks_plain_weight"


def wrap_finalize(original: Callable[..., None]) -> Callable[..., None]:
    """Make the end of a layerwise reload pack a tied weight anew in every layer that has it.

    A reload takes the model apart into layers with tensors of their own, so a tied weight arrives in one of its layers alone.
    The others see the new values, as all share the storage, but keep what they had packed.
    """

    @wraps(original)
    def finalize_layerwise_processing(model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        original(model, *args, **kwargs)
        for layer in _packed_and_tied(model):
            layer.quant_method.process_weights_after_loading(layer)

    return finalize_layerwise_processing


def wrap_setup_kernel(original: Callable[..., None]) -> Callable[..., None]:
    """Make `UnquantizedFusedMoEMethod._setup_kernel` pack the experts on every call, not on the first one only.

    By then the layer's ``w13_weight`` and ``w2_weight`` ``[experts, rows, columns]`` hold the new weights in the checkpoint's
    layout. What this leaves in the layer is copied into the tensors that the kernel reads.
    """

    @wraps(original)
    def _setup_kernel(self: Any, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        is_update = self.moe_kernel is not None
        original(self, layer, *args, **kwargs)
        if is_update:
            self.moe_kernel.fused_experts.process_weights_after_loading(layer)

    return _setup_kernel


def wrap_dispatch(original: Callable[..., None]) -> Callable[..., None]:
    """Make `dispatch_cpu_unquantized_gemm` bring new weights of a convolution also where its mixer reads them.

    The mixer's ``conv_weights`` ``[channels, width]`` is a view of the memory that the layer's weight had when the model was
    made. Packing gives the weight other memory, and a reload copies new weights there alone.
    """

    @wraps(original)
    def dispatch_cpu_unquantized_gemm(layer: Any, *args: Any, **kwargs: Any) -> None:
        plain = layer.weight.data
        original(layer, *args, **kwargs)
        if plain.ndim != 3 or plain.is_meta or layer.weight.data_ptr() == plain.data_ptr():
            return
        if (first := layer.__dict__.setdefault(_PLAIN, plain)) is not plain:
            first.copy_(plain)

    return dispatch_cpu_unquantized_gemm


def _packed_and_tied(model: torch.nn.Module) -> list[Any]:
    """Returns the embeddings and heads that packed a weight ``[padded vocabulary, hidden]`` which another layer has, too."""
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding

    embeddings: list[Any] = [layer for layer in model.modules() if isinstance(layer, VocabParallelEmbedding)]
    # A quantized layer has no tensor of this name, and its method packs in its own way.
    plain = [layer for layer in embeddings if isinstance(layer.quant_method, UnquantizedEmbeddingMethod)]
    owners = Counter(id(layer.weight) for layer in plain)
    # `cpu_linear` is what packing leaves behind: at the end of an engine's very first load there is none.
    return [layer for layer in plain if owners[id(layer.weight)] > 1 and hasattr(layer, "cpu_linear")]
