"""Does the engine hold what the trainer sent? A second model is loaded from the same source, and the two are compared.

Comparing names and values of the sent tensors would show nothing: the engine fuses, shards and packs them, and some of what
it packs (the CPU build's matrices, for one) is in no tensor that a checksum could see. So every registered tensor is compared
by value, and every linear layer by what it makes of one and the same input. Imports vLLM to make the second model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from quirks_core.base.errors import words
from worker.errors import RefitError
from worker.refit.weights.copy_plan import same_bytes

#: The module that holds the layer itself where vLLM has wrapped it for LoRA.
_WRAPPED = ".base_layer."
#: Rows of the input that a layer is compared with.
_ROWS = 4
#: How far two answers may lie apart, relative to the largest; kernels may add in another order.
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
_COARSE = 1e-2


def fresh_model(vllm_config: Any, device: torch.device) -> nn.Module:
    """Makes the engine's model once more, without weights; it takes as much memory as the first.

    Args:
        vllm_config: The engine's configuration; it is left as it is.
        device: Where the engine computes.

    Raises:
        RefitError: There is not enough memory on the device.
    """
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    config = copy.copy(vllm_config)
    # Layers enter themselves here by name, and the names are those of the first model.
    config.compilation_config = copy.copy(vllm_config.compilation_config)
    config.compilation_config.static_forward_context = {}
    if hasattr(config.compilation_config, "static_all_moe_layers"):
        config.compilation_config.static_all_moe_layers = []
    try:
        with set_default_torch_dtype(config.model_config.dtype), device:
            return initialize_model(vllm_config=config, model_config=config.model_config).eval()
    except torch.OutOfMemoryError as error:
        raise RefitError(
            "verify_refit_async loads the weights a second time beside the first, and there is no room for that on "
            f"{device}; lower engine.gpu_memory_utilization for the run that verifies"
        ) from error


def differences(model: nn.Module, fresh: nn.Module, dtype: torch.dtype) -> dict[str, str]:
    """Compares two models.

    Args:
        model: The one that runs.
        fresh: One that has just been loaded.
        dtype: The model's dtype. The kernels of some CPUs keep biases in float32, into which vLLM's reload puts new values as
            they are; its start rounds them to the model's dtype first. So two values are equal if rounding makes them so.

    Returns:
        For every tensor or layer that differs, what is different; empty if nothing is.

    Raises:
        RefitError: A layer cannot be compared.
    """
    found = {}
    expected = dict(_tensors(fresh))
    held = {unwrapped(name): tensor for name, tensor in _tensors(model)}
    for name in expected.keys() | held.keys():
        if problem := _difference(held.get(name), expected.get(name), dtype):
            found[name] = problem
    layers = dict(fresh.named_modules())
    for name, layer in {unwrapped(name): layer for name, layer in model.named_modules()}.items():
        if name in layers and (problem := _behaves_differently(name, layer, layers[name])):
            found[f"{name} (as it computes)"] = problem
    return dict(sorted(found.items()))


def unwrapped(name: str) -> str:
    """Returns the name of a tensor or module as it is in an engine without LoRA."""
    return f"{name}.".replace(_WRAPPED, ".")[:-1]


@torch.inference_mode()  # type: ignore[untyped-decorator]
def packed_answers(model: nn.Module, *, scale: float = 1.0) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields what each linear layer makes of one input whose weight a kernel has packed into no tensor that is visible.

    Args:
        model: The model.
        scale: Of the input; what it makes of zeros is NaN if, and only if, a weight is not finite.
    """
    for name, layer in model.named_modules():
        weight = next(layer.parameters(recurse=False), None)
        if weight is None or weight.numel() or (x := _input(layer)) is None:
            continue
        try:
            answer = _answer(layer, x * scale)
        except Exception:  # noqa: S112 - a convolution's layer only holds a weight, and the layer around it computes
            continue
        yield name, answer


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from ((name, tensor.detach()) for name, tensor in model.named_parameters())
    yield from model.named_buffers()


def _difference(held: torch.Tensor | None, expected: torch.Tensor | None, dtype: torch.dtype) -> str | None:
    if held is None or expected is None:
        return "only in the running model" if expected is None else "missing in the running model"
    if held.shape != expected.shape or held.dtype != expected.dtype:
        return f"is {held.dtype} {list(held.shape)}, should be {expected.dtype} {list(expected.shape)}"
    # As bytes: a NaN is equal to itself here, and every dtype can be compared.
    if same_bytes(held, expected):
        return None
    if not held.is_floating_point():
        return f"{int((held != expected).sum())} of {held.numel()} values differ"
    if torch.equal(held.to(dtype).to(expected.dtype), expected):
        return None
    apart = (held.double() - expected.double()).abs()
    return f"{int((apart != 0).sum())} of {held.numel()} values differ, by up to {float(apart.max()):.3g}"


@torch.inference_mode()  # type: ignore[untyped-decorator]
def _behaves_differently(name: str, layer: nn.Module, fresh: nn.Module) -> str | None:
    """Compares two linear layers on the same input; None for any other kind of layer."""
    if (x := _input(fresh)) is None:
        return None
    try:
        expected = _answer(fresh, x)
    except Exception as error:
        # A convolution's layer only holds a weight, and the layer around it computes: comparing the values is enough.
        if next(fresh.parameters(recurse=False)).numel():
            return None
        raise RefitError(f"{name} cannot be compared: its weight is packed, and it does not compute: {words(error)}") from error
    try:
        held = _answer(layer, x)
    except Exception as error:
        return f"does not compute: {words(error)}"
    apart = float((held.double() - expected.double()).abs().max())
    scale = float(expected.double().abs().max()) or 1.0
    if apart <= _TOLERANCE.get(x.dtype, _COARSE) * scale:
        return None
    return f"answers to the same input differ by up to {apart:.3g} (the largest is {scale:.3g})"


def _input(layer: nn.Module) -> torch.Tensor | None:
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


def _answer(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Has a linear layer compute [B, W] → [B, V] as its quantisation does, without communication between processes."""
    answer: torch.Tensor = layer.quant_method.apply(layer, x, getattr(layer, "bias", None))
    return answer
