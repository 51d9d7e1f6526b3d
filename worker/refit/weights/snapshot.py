"""Which tensors a model had, and where they lay: compared with the model later, faster than the model is described again."""

from __future__ import annotations

import weakref
from collections.abc import Container
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from worker.refit.weights.scope import local


class _Slot(NamedTuple):
    """A parameter or buffer of a module: the tensor, and where and how its values lay.

    Not a weak reference to the tensor: ``Module.to`` moves no ``DTensor`` that has one.
    """

    buffer: bool
    name: str
    tensor: int
    place: Any
    storage: StorageWeakRef | None  # so that no other storage gets the identity of this one; it keeps no values


class _Part(NamedTuple):
    """A module, with its children and those of its tensors that count; how many there are, if all count."""

    module: weakref.ref[nn.Module]
    sizes: tuple[int, int, int] | None
    children: list[tuple[str, weakref.ref[nn.Module] | None]]
    slots: list[_Slot]


class Snapshot:
    """A model's tensors at one moment; it keeps neither model nor tensors alive."""

    def __init__(self, model: nn.Module, names: Container[str] | None = None) -> None:
        """Looks at the model.

        Args:
            model: The model.
            names: The parameters and buffers that count; all if None.
        """
        self._parts = [
            _Part(
                weakref.ref(module),
                _sizes(module) if names is None else None,
                [(name, None if child is None else weakref.ref(child)) for name, child in module._modules.items()],
                [
                    _Slot(buffer, name, id(tensor), _place(tensor), _storage(tensor))
                    for buffer, held in ((False, module._parameters), (True, module._buffers))
                    for name, tensor in held.items()
                    if names is None or (f"{path}.{name}" if path else name) in names
                ],
            )
            for path, module in model.named_modules()
        ]

    def holds(self, model: nn.Module) -> bool:
        """Returns whether a model has these very tensors where they were; of sharded ones (``DTensor``) this rank's parts."""
        if self._parts[0].module() is not model:
            return False
        with torch._C.DisableTorchFunctionSubclass():  # vLLM's parameters pass each call through Python otherwise
            for part in self._parts:
                module = part.module()
                if module is None or (part.sizes is not None and _sizes(module) != part.sizes):
                    return False
                for name, child in part.children:
                    if module._modules.get(name) is not (child and child()):
                        return False
                for buffer, name, known, place, _ in part.slots:
                    tensor = (module._buffers if buffer else module._parameters).get(name)
                    if id(tensor) != known or _place(tensor) != place:
                        return False
        return True


def _sizes(module: nn.Module) -> tuple[int, int, int]:
    return len(module._modules), len(module._parameters), len(module._buffers)


def _place(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    own = local(tensor)  # the full shape of a sharded one is the model's
    return own.untyped_storage()._cdata, own.data_ptr(), own.shape, own.stride(), own.dtype


def _storage(tensor: torch.Tensor | None) -> StorageWeakRef | None:
    return None if tensor is None else StorageWeakRef(local(tensor).untyped_storage())
