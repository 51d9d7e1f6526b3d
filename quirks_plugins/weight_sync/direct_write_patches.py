"""The functions that ``gptoss-experts-refit``, ``attention-sink-refit`` and ``fused-slice-refit`` put into vLLM.

A layerwise reload replaces each layer's tensors by meta tensors, which have a shape and no values. It records the arguments of
each call of a tensor's ``weight_loader``, and repeats the calls with real tensors once the layer is complete. A model that
writes into such a tensor itself writes nothing. These wrappers turn such writes into calls of the weight loader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import torch

#: An attribute of a meta tensor whose weight loader takes `_Region`.
_TAKES_REGIONS = "_takes_regions"


class _Region(NamedTuple):
    """A part of a tensor, as a view of it: where the view starts, its shape and strides, in elements."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.as_strided(self.size, self.stride, self.offset)


class _Target(NamedTuple):
    """A parameter that has no values yet, and the layer that it is of."""

    layer: torch.nn.Module
    name: str
    parameter: torch.Tensor


def wrap_expert_load(original: Callable[..., set[str]]) -> Callable[..., set[str]]:
    """Wraps the ``load_weights`` of a model that copies whole stacks of experts, weights and biases."""
    return _wrapped(original, (".w13_weight", ".w13_bias", ".w2_weight", ".w2_bias"))


def wrap_sink_load(original: Callable[..., set[str]]) -> Callable[..., set[str]]:
    """Wraps the ``load_weights`` of a model that copies its attention sinks ``[heads]``."""
    return _wrapped(original, (".sinks", ".attention_sink_bias"))


def wrap_slice_load(original: Callable[..., set[str]]) -> Callable[..., set[str]]:
    """Wraps the ``load_weights`` of a model that copies a checkpoint's tensors into slices of larger ones."""
    return _wrapped(original, (".qkv_proj.weight", ".oe_projection", ".oe_embedder.weight"))


def _wrapped(original: Callable[..., set[str]], endings: tuple[str, ...]) -> Callable[..., set[str]]:
    places: WeakKeyDictionary[torch.nn.Module, list[tuple[torch.nn.Module, str]]] = WeakKeyDictionary()

    @wraps(original)
    def load_weights(self: torch.nn.Module, *args: Any, **kwargs: Any) -> set[str]:
        if self not in places:  # a trainer may load tensors one by one
            places[self] = list(_named(self, endings))
        targets = _without_values(places[self])
        if not targets:  # a first load, or a reload of other layers
            return original(self, *args, **kwargs)
        with _caught_writes(targets):
            return original(self, *args, **kwargs)

    return load_weights


def _named(model: torch.nn.Module, endings: tuple[str, ...]) -> Iterator[tuple[torch.nn.Module, str]]:
    for path, layer in model.named_modules():
        for name in layer._parameters:
            if f".{path}.{name}".endswith(endings):
                yield layer, name


def _without_values(places: list[tuple[torch.nn.Module, str]]) -> dict[int, _Target]:
    """Returns the parameters that a reload is about to fill, by the identity of their memory."""
    found = {}
    for layer, name in places:
        parameter = layer._parameters.get(name)
        if parameter is not None and parameter.is_meta:
            found[_memory(parameter)] = _Target(layer, name, parameter)
    return found


def _caught_writes(targets: Mapping[int, _Target]) -> Any:
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
    from vllm.model_executor.model_loader.reload.meta import CopyCounter

    def written(func: Any, args: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Returns the part of a target that a call writes to, and what it writes; None for any other call."""
        if func is torch.Tensor.copy_:
            view, source = args[:2]
        elif func is torch.Tensor.__setitem__:
            view, source = args[0], args[2]
        else:
            return None
        if not (isinstance(source, torch.Tensor) and view.is_meta and _memory(view) in targets):
            return None
        # A weight loader runs on meta tensors, too: vLLM calls it once to count the elements that it would copy.
        if any(isinstance(mode, CopyCounter) for mode in _get_current_dispatch_mode_stack()):
            return None
        return (view if func is torch.Tensor.copy_ else view[args[1]]), source

    class CaughtWrites(TorchFunctionMode):  # type: ignore[misc]
        """Hands what is written to the targets to their weight loaders."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = written(func, args)
            if found is None:
                return func(*args, **(kwargs or {}))
            view, source = found
            _hand_on(targets[_memory(view)], view, source)
            return args[0]

    return CaughtWrites()


def _hand_on(target: _Target, view: torch.Tensor, source: torch.Tensor) -> None:
    """Has a parameter's weight loader do a write, when the reload does its loads."""
    region = _Region(int(view.storage_offset()), tuple(view.shape), tuple(view.stride()))
    _region_loader(target)(target.parameter, source.expand(view.shape), region)


def _region_loader(target: _Target) -> Callable[..., Any]:
    """Returns a loader of the reload's that takes a region; it becomes the parameter's, and takes any other call as before."""
    from vllm.model_executor.model_loader.reload.layerwise import _get_original_loader, make_online_process_loader

    parameter: Any = target.parameter
    if not hasattr(parameter, _TAKES_REGIONS):
        before = _get_original_loader(parameter)

        def loader(param: torch.Tensor, loaded_weight: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if args and isinstance(args[0], _Region):
                return args[0].of(param.data).copy_(loaded_weight)
            return before(param, loaded_weight, *args, **kwargs)

        parameter.weight_loader = loader
        parameter.weight_loader = make_online_process_loader(target.layer, target.name)
        setattr(parameter, _TAKES_REGIONS, True)
    online: Callable[..., Any] = parameter.weight_loader
    return online


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
