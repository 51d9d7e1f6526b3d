"""Which tensors of a refit lie in the memory of the trainer's model itself, which an optimizer updates in place.

They are sent, or read by engine processes on the same machine, from where they are. What is made for a refit alone, a gathered
``DTensor`` for one, is none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch

from worker.errors import RefitError
from worker.refit.weights.box import Box, Held
from worker.refit.weights.manifest import Chunk, Manifest, size_of
from worker.refit.weights.packing import Place
from worker.refit.weights.shards import is_sharded


class InPlace:
    """The tensors of a refit that lie in a model's memory, for the process that has the model.

    Attributes:
        places: Where they lie, by name.
    """

    def __init__(self, model: torch.nn.Module, places: Mapping[str, Place]) -> None:
        self.places = places
        self._model = model

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

    def held(self, manifest: Manifest) -> Held:
        """Returns those of a manifest that lie there."""
        found = ((spec, self.memory([(spec, 0)])) for spec in manifest.tensors)
        return {
            spec.name: (Box.whole(spec.shape), memory.view(spec.torch_dtype).view(spec.shape))
            for spec, memory in found
            if memory is not None
        }

    @cached_property
    def _storages(self) -> dict[int, torch.UntypedStorage]:
        return storages(self._model)


def places(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], device: torch.device) -> dict[str, Place]:
    """Returns where tensors lie in the memory of a model, by name, without those that lie elsewhere or are sharded.

    Args:
        model: Whose memory it must be.
        tensors: The tensors of a refit.
        device: Where they must lie.
    """
    own = storages(model)
    plain = ((name, tensor) for name, tensor in tensors.items() if not is_sharded(tensor))
    found = {name: _place(tensor) for name, tensor in plain if tensor.is_contiguous() and tensor.device == device}
    return {name: place for name, place in found.items() if place.size and place.address in own}


def storages(model: torch.nn.Module) -> dict[int, torch.UntypedStorage]:
    """Returns the memory of a model by address; of a sharded one (``DTensor``) this rank's."""
    tensors = (*model.parameters(), *model.buffers())
    own = (tensor.to_local() if is_sharded(tensor) else tensor for tensor in tensors)
    return {storage.data_ptr(): storage for storage in (tensor.detach().untyped_storage() for tensor in own)}


def _place(tensor: torch.Tensor) -> Place:
    storage = tensor.untyped_storage()
    return Place(storage.data_ptr(), storage.nbytes(), tensor.storage_offset() * tensor.element_size())
