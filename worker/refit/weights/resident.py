"""A trainer's memory that engine processes on the same machine open once and read at every refit, without a buffer between.

Only tensors qualify that lie in the memory of the trainer's model itself, which an optimizer updates in place: on the GPU that
trainer and engine share, or in host memory that was shared (``model.share_memory()``). What is made for a refit alone, a
gathered ``DTensor`` for one, goes through buffers (`worker.refit.transport.ipc_zmq`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import torch

from worker.errors import RefitError, TransferError
from worker.refit.weights.buffers import open_memory, share_memory
from worker.refit.weights.manifest import Chunk, Manifest, size_of
from worker.refit.weights.packing import Place


class Exported:
    """The tensors of a refit that lie in a model's memory, on the trainer's side.

    Attributes:
        key: Stands for these tensors in these places, and for everything that is sent with them.
        names: Their names.
    """

    def __init__(self, places: Mapping[str, Place]) -> None:
        self.key = uuid.uuid4().hex
        self.names = frozenset(places)
        self._places = places

    @classmethod
    def of(
        cls, model: torch.nn.Module, tensors: Callable[[], Iterable[tuple[str, torch.Tensor]]], device: torch.device
    ) -> Exported | None:
        """Returns what can be read where it is, as long as everything stays there; None if nothing can.

        Args:
            model: Whose memory it must be.
            tensors: What a refit sends; called only if the model's memory can be shared.
            device: The device that trainer and engine share.
        """
        if not any(can_be_shared(tensor, device) for tensor in _memory_of(model)):
            return None
        found = places(model, tensors(), device, can_be_shared)
        return cls(found) if found else None

    def table(self, model: torch.nn.Module) -> dict[str, Any]:
        """Returns JSON values from which `opened` finds the tensors."""
        storages = _storages(model)
        addresses = sorted({address for address, _, _ in self._places.values()})
        index = {address: number for number, address in enumerate(addresses)}
        return {
            "memory": [share_memory(storages[address]) for address in addresses],
            "tensors": {name: [index[address], offset] for name, (address, _, offset) in self._places.items()},
        }


class InPlace:
    """The tensors of a refit that lie in a model's memory, for the process that has the model.

    Attributes:
        places: Where they lie, by name.
    """

    def __init__(self, model: torch.nn.Module, places: Mapping[str, Place]) -> None:
        self.places = places
        self._storages = _storages(model)

    def memory(self, chunk: Chunk) -> torch.Tensor | None:
        """Returns the memory in which tensors lie as in a chunk, as [nbytes] uint8; None if they lie otherwise.

        Raises:
            RefitError: The model's memory has moved since it was described.
        """
        first = self.places.get(chunk[0][0].name)
        if first is None:
            return None
        address, size, start = first
        for spec, offset in chunk:
            if self.places.get(spec.name) != (address, size, start + offset):
                return None
        storage = self._storages.get(address)
        if storage is None or storage.nbytes() != size:
            raise RefitError(
                f"refit: {chunk[0][0].name} has moved since the model was described; make a Source for every refit"
            )
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, start, (size_of(chunk),), (1,))


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


def places(
    model: torch.nn.Module,
    tensors: Iterable[tuple[str, torch.Tensor]],
    device: torch.device,
    usable: Callable[[torch.Tensor, torch.device], bool] = lambda *_: True,
) -> dict[str, Place]:
    """Returns where tensors lie in the memory of a model, by name, without those that lie elsewhere.

    Args:
        model: Whose memory it must be.
        tensors: Names and tensors of a refit.
        device: Where they must lie.
        usable: Returns which tensors of the model count.
    """
    held = {tensor.untyped_storage().data_ptr() for tensor in _memory_of(model) if tensor.numel() and usable(tensor, device)}
    found = {name: _place(tensor) for name, tensor in tensors if tensor.is_contiguous() and tensor.device == device}
    return {name: place for name, place in found.items() if place.address in held}


def _storages(model: torch.nn.Module) -> dict[int, torch.UntypedStorage]:
    """Returns the memory of a model by address."""
    return {storage.data_ptr(): storage for storage in map(torch.Tensor.untyped_storage, _memory_of(model))}


def _memory_of(model: torch.nn.Module) -> Iterable[torch.Tensor]:
    tensors = (*model.parameters(), *model.buffers())
    return (tensor.detach() for tensor in tensors if not hasattr(tensor, "full_tensor"))


def can_be_shared(tensor: torch.Tensor, device: torch.device) -> bool:
    """Returns whether another process can open a tensor's memory, on a GPU or in host memory that is shared."""
    if tensor.device != device:
        return False
    storage = tensor.untyped_storage()
    return device.type == "cuda" or (storage.is_shared() and storage.filename is None)


def _place(tensor: torch.Tensor) -> Place:
    storage = tensor.untyped_storage()
    return Place(storage.data_ptr(), storage.nbytes(), tensor.storage_offset() * tensor.element_size())
