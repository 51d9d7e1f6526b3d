"""The functions that ``partial-module-refit``, ``apertus-xielu-buffers`` and ``duplicate-tensor-refit`` put into vLLM."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inspect import BoundArguments

    import torch

_LOG = logging.getLogger("model_quirks")

#: Methods that leave a loaded weight as it is, and so do their subclasses: by name, so that none has to be imported.
_AS_LOADED = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")
#: MoE backends whose kernels read the experts in the checkpoint's layout.
_PLAIN_EXPERTS = ("TRITON", "BATCHED_TRITON")

#: Arguments of a weight loader that decide by their value where it writes.
_PLAIN = (str, int)


def wrap_layerwise_process(original: Callable[..., None]) -> Callable[..., None]:
    """Make a layer whose weights came only in part start from its old values instead of from uninitialised memory."""

    @wraps(original)
    def _layerwise_process(layer: torch.nn.Module, info: Any, *args: Any, **kwargs: Any) -> None:
        if info.kernel_tensors is not None and _is_incomplete(layer, info):
            _start_from_old_values(layer, info)
        original(layer, info, *args, **kwargs)

    return _layerwise_process


def wrap_process_with_buffers(original: Callable[..., None]) -> Callable[..., None]:
    """Make the persistent buffers of a layer start from their old values instead of from uninitialised memory."""

    @wraps(original)
    def _layerwise_process(layer: torch.nn.Module, info: Any, *args: Any, **kwargs: Any) -> None:
        from vllm.model_executor.model_loader.reload.meta import materialize_meta_tensor

        held = info.kernel_tensors[1] if info.kernel_tensors is not None else {}
        for name, buffer in layer._buffers.items():
            old = held.get(name)
            if buffer is None or not buffer.is_meta or old is None or (old.shape, old.dtype) != (buffer.shape, buffer.dtype):
                continue
            with info.restore_device:
                layer._buffers[name] = materialize_meta_tensor(buffer).copy_(old)
        original(layer, info, *args, **kwargs)

    return _layerwise_process


def wrap_make_loader(original: Callable[..., Callable[..., Any]]) -> Callable[..., Callable[..., Any]]:
    """Make a tensor that comes again replace the one before, so that its elements are counted once.

    What came is known by weak references: memory of a trainer's that vLLM needs no longer is free at once.
    """

    @wraps(original)
    def make_online_process_loader(layer: torch.nn.Module, param_name: str) -> Callable[..., Any]:
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        load = original(layer, param_name)
        info = get_layerwise_info(layer)
        came: dict[tuple[Any, ...], weakref.ref[BoundArguments]] = {}

        @wraps(load)  # vLLM knows its own loader by name
        def online_process_loader(*args: Any, **kwargs: Any) -> Any:
            key = _call(args, kwargs)
            earlier = known() if (known := came.get(key)) is not None else None
            if earlier is not None and info.can_load() and any(call[1] is earlier for call in info.loaded_weights):
                _take_back(earlier, info, load.__wrapped__)  # type: ignore[attr-defined]
                _LOG.warning("a refit sent a part of %s.%s again: the last one counts", type(layer).__name__, param_name)
            del earlier
            calls = info.loaded_weights
            before = len(calls)
            result = load(*args, **kwargs)
            if calls is info.loaded_weights and len(calls) > before:  # the layer is not complete yet
                came[key] = weakref.ref(calls[-1][1])
            return result

        return online_process_loader

    return make_online_process_loader


def _call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Identifies a call of a weight loader by all that decides where it writes."""
    values = (*args[1:], *kwargs.values())  # the first is the parameter
    return tuple(
        [value if isinstance(value, _PLAIN) else value.shape if hasattr(value, "shape") else repr(value) for value in values]
    )


def _take_back(earlier: BoundArguments, info: Any, loader: Callable[..., Any]) -> None:
    """Removes a call from those that a reload will repeat, and its elements from those that it has counted."""
    from vllm.model_executor.model_loader.reload.meta import get_numel_loaded

    info.loaded_weights[:] = [call for call in info.loaded_weights if call[1] is not earlier]
    info.load_numel -= get_numel_loaded(loader, earlier)[0]


def _is_incomplete(layer: torch.nn.Module, info: Any) -> bool:
    """Returns whether elements of a layer will not be loaded: parts that were not sent, or padding."""
    padded = any(hasattr(parameter, "weight_loader_numel") for parameter in layer._parameters.values())
    return padded or info.load_numel < info.load_numel_total


def _start_from_old_values(layer: torch.nn.Module, info: Any) -> None:
    """Gives a layer's meta tensors memory and values; vLLM then loads what came on top of them.

    Buffers are left to vLLM. Where the old values cannot be recovered from what a kernel made of them, the memory is set to
    zero, as it was when the layer was made: what is not loaded into such a layer is padding.
    """
    from vllm.model_executor.model_loader.reload.meta import materialize_layer

    empty = [name for name, parameter in layer._parameters.items() if parameter is not None and parameter.is_meta]
    kept = {name: _old_value(layer, name, info) for name in empty}
    materialize_layer(layer, info)
    for name, old in kept.items():
        tensor = layer._parameters[name]
        assert tensor is not None  # noqa: S101 - it was a meta tensor just now
        if old is None:
            tensor.data.zero_()
        else:
            tensor.data.copy_(old)


def _old_value(layer: Any, name: str, info: Any) -> torch.Tensor | None:
    """Returns what a parameter held before the reload, in the checkpoint's layout; None if that is unknown."""
    tensor, held = layer._parameters[name], info.kernel_tensors[0].get(name)
    if held is None or not is_as_loaded(layer):
        return None
    if held.shape == tensor.shape and held.dtype == tensor.dtype:
        return held.data
    return _unpacked(layer, tensor, info) if name == "weight" else None


def is_as_loaded(layer: Any) -> bool:
    """Returns whether a layer's kernel reads weights as they are loaded."""
    method = getattr(layer, "quant_method", None)
    if method is None or any(kind.__name__ in _AS_LOADED for kind in type(method).__mro__):
        return True
    return getattr(getattr(method, "unquantized_backend", None), "name", "") in _PLAIN_EXPERTS


def _unpacked(layer: Any, wanted: torch.Tensor, info: Any) -> torch.Tensor | None:
    """Returns the weight ``[output, input]`` that vLLM's CPU platform has in packed form alone.

    The product of the identity matrix and a weight is that weight exactly: every sum has one term that is not zero.
    """
    import torch

    multiply = getattr(layer, "cpu_linear", None)
    if multiply is None or wanted.dim() != 2:
        return None
    with info.restore_device:
        identity = torch.eye(wanted.shape[1], dtype=wanted.dtype)
    found = multiply(identity, None, None).t()
    return found if found.shape == wanted.shape else None
