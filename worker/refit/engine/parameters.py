"""What a model computes with, as its process has it: its parameters, and what kernels make of those that they packed away.

Some of what kernels pack (the CPU build's matrices, for one) is in no tensor that a digest could see. Imports vLLM to know
linear layers.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from quirks_core.ledger.account import COMPUTES
from worker.refit.weights.digest import parts

#: The module that holds the layer itself where vLLM has wrapped it for LoRA.
_WRAPPED = ".base_layer."
#: Rows of the input that a layer is compared with.
_ROWS = 4


class Parameters:
    """The parameters of a model; an update may replace parameters, and no layers, which take a while to find.

    Attributes:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._layers = [(f"{name}." if name else "", layer) for name, layer in model.named_modules()]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the parameters that have memory, each once; buffers may change while the engine generates."""
        seen: set[int] = set()
        for prefix, layer in self._layers:
            for name, parameter in layer._parameters.items():
                if parameter is not None and parameter.numel() and not parameter.is_meta and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield from parts(prefix + name, parameter)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def answers(self, scale: float = 1.0) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields what each linear layer with a packed weight makes of one input, as ``NAME (as it computes)``.

        Args:
            scale: Of the input; what a layer makes of zeros is NaN if, and only if, a weight is not finite.
        """
        for prefix, layer in self._layers:
            weight = next((one for one in layer._parameters.values() if one is not None), None)
            if weight is None or weight.numel() or (x := linear_input(layer)) is None:
                continue
            try:
                answer = linear_answer(layer, x * scale)
            except Exception:  # noqa: S112 - a convolution's layer only holds a weight, and the layer around it computes
                continue
            yield prefix.removesuffix(".") + COMPUTES, answer


def unwrapped(name: str) -> str:
    """Returns the name of a tensor or module as it is in an engine without LoRA."""
    return f"{name}.".replace(_WRAPPED, ".")[:-1]


def linear_input(layer: nn.Module) -> torch.Tensor | None:
    """Makes an input [B, W] for a linear layer, the same on every process and every time; None for any other kind of layer."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    if isinstance(layer, LinearBase):
        width = getattr(layer, "input_size_per_partition", layer.input_size)
    elif isinstance(layer, VocabParallelEmbedding):
        width = layer.embedding_dim
    else:
        return None
    if (weight := next(layer.parameters(recurse=False), None)) is None:
        return None
    dtype = getattr(layer, "params_dtype", None) or weight.dtype
    generator = torch.Generator().manual_seed(width)  # of its own, which leaves the sampler's alone
    return torch.randn(_ROWS, width, generator=generator).to(weight.device, dtype)


def linear_answer(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Has a linear layer compute [B, W] → [B, V] as its quantisation does, without communication between processes."""
    answer: torch.Tensor = layer.quant_method.apply(layer, x, getattr(layer, "bias", None))
    return answer
