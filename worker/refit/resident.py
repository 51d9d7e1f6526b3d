"""A trainer's memory that engine processes on the same machine open once and read at every refit, without a buffer between.

Only tensors qualify that lie in the memory of the trainer's model itself, which an optimizer updates in place: on the GPU that
trainer and engine share, or in host memory that was shared (``model.share_memory()``). What is made for a refit alone, a
gathered ``DTensor`` for one, goes through buffers (`worker.refit.ipc_zmq`).
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import torch

from worker.errors import TransferError
from worker.refit.buffers import open_memory, share_memory
from worker.refit.manifest import Manifest

#: By model, what was exported of it last.
_exported: weakref.WeakKeyDictionary[torch.nn.Module, Exported] = weakref.WeakKeyDictionary()
#: Where a tensor is: the address of its memory, the size of that, and its offset, in bytes.
_Place = tuple[int, int, int]


class Exported:
    """The tensors of a refit that lie in a model's memory, on the trainer's side.

    Attributes:
        key: Stands for these tensors in these places, and for everything that is sent with them.
        names: Their names.
    """

    def __init__(self, device: torch.device, manifest: Manifest, places: Mapping[str, _Place]) -> None:
        self.key = uuid.uuid4().hex
        self.names = frozenset(places)
        self._places = dict(places)
        self._identity = (device, manifest, self._places)

    @classmethod
    def of(
        cls,
        model: torch.nn.Module,
        tensors: Callable[[], Iterable[tuple[str, torch.Tensor]]],
        manifest: Manifest,
        device: torch.device,
    ) -> Exported | None:
        """Returns what can be read where it is, the same object as long as everything stays there; None if nothing can.

        Args:
            model: Whose memory it must be.
            tensors: What a refit sends; called only if the model's memory can be shared.
            manifest: Describes it.
            device: The device that trainer and engine share.
        """
        held = {tensor.untyped_storage().data_ptr() for tensor in _memory_of(model) if _can_be_shared(tensor, device)}
        if not held:
            return None
        places = {name: _place(tensor) for name, tensor in tensors() if tensor.is_contiguous() and tensor.device == device}
        places = {name: place for name, place in places.items() if place[0] in held}
        if not places:
            return None
        known = _exported.get(model)
        if known is None or known._identity != (device, manifest, places):
            known = _exported[model] = cls(device, manifest, places)
        return known

    def table(self, model: torch.nn.Module) -> dict[str, Any]:
        """Returns JSON values from which `opened` finds the tensors."""
        storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in _memory_of(model)}
        addresses = sorted({address for address, _, _ in self._places.values()})
        index = {address: number for number, address in enumerate(addresses)}
        return {
            "memory": [share_memory(storages[address].untyped_storage()) for address in addresses],
            "tensors": {name: [index[address], offset] for name, (address, _, offset) in self._places.items()},
        }


class Imported(dict[str, torch.Tensor]):
    """The same tensors in an engine process, by name.

    Attributes:
        key: What `Exported.key` is.
        manifest: Everything that is sent with them, and they themselves.
    """

    key: str
    manifest: Manifest

    @classmethod
    def opened(cls, key: str, table: Mapping[str, Any], manifest: Manifest, device: torch.device) -> Self:
        """Opens the trainer's memory.

        Args:
            key: Its name.
            table: What `Exported.table` gave.
            manifest: What a refit sends.
            device: Where this process computes.

        Raises:
            TransferError: It is gone, is another user's, lies on another GPU, or is smaller than it should be.
        """
        memory = [open_memory(handle, device) for handle in table["memory"]]
        specs = {spec.name: spec for spec in manifest.tensors}
        found = cls()
        found.key, found.manifest = key, manifest
        for name, (index, offset) in table["tensors"].items():
            end = offset + specs[name].nbytes
            if end > len(memory[index]):
                raise TransferError(f"refit: {name} ends at byte {end} of {len(memory[index])} of the trainer's memory")
            found[name] = memory[index][offset:end].view(specs[name].torch_dtype).view(specs[name].shape)
        return found


def _memory_of(model: torch.nn.Module) -> Iterable[torch.Tensor]:
    tensors = (*model.parameters(), *model.buffers())
    return (tensor.detach() for tensor in tensors if not hasattr(tensor, "full_tensor"))


def _can_be_shared(tensor: torch.Tensor, device: torch.device) -> bool:
    if tensor.device != device:
        return False
    storage = tensor.untyped_storage()
    return device.type == "cuda" or (storage.is_shared() and storage.filename is None)


def _place(tensor: torch.Tensor) -> _Place:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes(), tensor.storage_offset() * tensor.element_size()
