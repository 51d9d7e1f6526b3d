"""The wrapper that ``gemma3n-per-layer-embeddings`` puts around vLLM's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["wrap_forward"]

#: The attribute of the model that holds the embeddings ``[max_num_batched_tokens, layers, size]`` of each step.
_BUFFER = "_per_layer_embeddings"


def wrap_forward(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `Gemma3nForCausalLM.forward` that computes the per-layer embeddings of its token ids.

    Every step has them in the same memory, because CUDA graphs read where they were captured.
    """

    def embed_and_forward(
        self: Any, input_ids: torch.Tensor | None, positions: torch.Tensor, *, per_layer_inputs: Any = None, **kwargs: Any
    ) -> Any:
        if per_layer_inputs is None and input_ids is not None:
            embedded = self.model.self_decoder.get_per_layer_input_embeddings(input_ids)
            buffer = getattr(self, _BUFFER, None)
            if buffer is None:  # in the profiling run, before any capture
                buffer = _buffer_like(self, embedded)
                setattr(self, _BUFFER, buffer)
            per_layer_inputs = buffer[: input_ids.shape[0]]
            per_layer_inputs.copy_(embedded.view_as(per_layer_inputs))
        return forward(self, input_ids, positions, per_layer_inputs=per_layer_inputs, **kwargs)

    return embed_and_forward


def _buffer_like(model: Any, embedded: torch.Tensor) -> torch.Tensor:
    import torch

    config, tokens = model.config, model.model.vllm_config.scheduler_config.max_num_batched_tokens
    with torch.inference_mode(mode=False):  # a tensor like the model's own, which takes writes anywhere
        return embedded.new_zeros(tokens, config.num_hidden_layers, config.hidden_size_per_layer_input)
