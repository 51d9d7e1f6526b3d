"""The wrapper that ``gemma3n-per-layer-embeddings`` puts around vLLM's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["wrap_forward"]


def wrap_forward(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `Gemma3nForCausalLM.forward` that computes the per-layer embeddings of its token ids."""

    def embed_and_forward(
        self: Any, input_ids: torch.Tensor | None, positions: torch.Tensor, *, per_layer_inputs: Any = None, **kwargs: Any
    ) -> Any:
        if per_layer_inputs is None and input_ids is not None:
            embedded = self.model.self_decoder.get_per_layer_input_embeddings(input_ids)
            sizes = self.config.num_hidden_layers, self.config.hidden_size_per_layer_input
            per_layer_inputs = embedded.reshape(*input_ids.shape, *sizes)
        return forward(self, input_ids, positions, per_layer_inputs=per_layer_inputs, **kwargs)

    return embed_and_forward
