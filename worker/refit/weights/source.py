"""What a refit sends of one model: described once, and again after one of the model's tensors has changed place or kind.

Tensors that lie in the memory of the model itself, which an optimizer updates in place, are sent from there, or read there by
engine processes on the same machine. What is made for a refit alone, a gathered ``DTensor`` for one, is none of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import nn

from worker.errors import RefitError
from worker.refit.weights.box import Box, Held
from worker.refit.weights.manifest import Chunk, Manifest, size_of
from worker.refit.weights.packing import Place
from worker.refit.weights.pool import Shared
from worker.refit.weights.scope import RefitScope, gathered, layout
from worker.refit.weights.shards import Shards, is_sharded
from worker.refit.weights.snapshot import Snapshot

_T = TypeVar("_T")
#: By model, what was found out about it last.
_described: weakref.WeakKeyDictionary[nn.Module, _Description] = weakref.WeakKeyDictionary()


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
        return _storages(self._model)


class _Description:
    """What is true of a model while it stays as it was."""

    def __init__(self, model: nn.Module, scope: RefitScope, state: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        self.snapshot = Snapshot(model)
        self.scope = scope
        self.shards = Shards.of(model, scope)
        self.manifest = self.shards.manifest if self.shards is not None else Manifest.of(state().items())
        self._found: dict[object, Any] = {}

    def once(self, key: object, find: Callable[[], _T]) -> _T:
        """Returns what was found by that key before, or finds it."""
        if key not in self._found:
            self._found[key] = find()
        found: _T = self._found[key]
        return found


class Source:
    """The tensors of one model that one refit sends; call it for each pass over names and tensors.

    An optimizer updates a model in place, so from one refit to the next there is nothing to find out again: neither names nor
    shapes, nor which tensors lie where the engine can read them.

    Attributes:
        model: The trainer's model.
        scope: What is sent.
        manifest: Describes it.
        shards: What this rank of a sharded model holds; None if it is not sharded.
    """

    def __init__(self, model: nn.Module, scope: RefitScope | str) -> None:
        """Looks at the model.

        Args:
            model: The trainer's model; it must not change until the refit is over.
            scope: What to send.

        Raises:
            ValueError: The scope is unknown.
        """
        self.model = model
        self.scope = RefitScope(scope)
        known = _described.get(model)
        if known is None or known.scope is not self.scope or not known.snapshot.holds(model):
            known = _described[model] = _Description(model, self.scope, lambda: self._state)
        self._known = known
        self.manifest = known.manifest
        self.shards = known.shards

    def __call__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields names and whole tensors; all ranks of a sharded model have to iterate together."""
        yield from self.shards.gathered() if self.shards is not None else gathered(self._state)

    def in_place(self, device: torch.device) -> InPlace:
        """Returns which of them lie in the model's own memory on a device."""
        return InPlace(self.model, self._known.once(("places", device), lambda: self._places(device)))

    def held(self, device: torch.device, rank: int) -> Held | None:
        """Returns which part of each tensor a trainer's rank can send from where it lies; None if some must be made first.

        Args:
            device: Where they must lie.
            rank: The trainer's rank; of what is not sharded, rank 0's is sent.

        Raises:
            RefitError: The model's memory has moved since it was described.
        """
        self._check()
        return self._known.once(("held", device, rank), lambda: self._held(device, rank))

    def _places(self, device: torch.device) -> dict[str, Place]:
        own = _storages(self.model)
        state = {} if self.shards is not None else self._state
        plain = ((name, tensor) for name, tensor in state.items() if not is_sharded(tensor))
        found = {name: _place(tensor) for name, tensor in plain if tensor.is_contiguous() and tensor.device == device}
        return {name: place for name, place in found.items() if place.size and place.address in own}

    def _held(self, device: torch.device, rank: int) -> Held | None:
        if self.shards is not None:
            found = {name: pair for name, pair in self.shards.held.items() if not rank or self.shards.is_sharded(name)}
            return found if all(tensor.device == device for _, tensor in found.values()) else None
        if rank:
            return {}
        held = self.in_place(device).held(self.manifest)
        return held if len(held) == len(self.manifest.tensors) else None

    def shared(self, device: torch.device) -> Shared | None:
        """Returns what engine processes can read from where it is; None if that is nothing, or not all that a rank has.

        Args:
            device: The device that trainer and engine share.

        Raises:
            RefitError: The model's memory has moved since it was described.
        """
        self._check()
        return self._known.once(("shared", device), lambda: self._shared(device))

    def _shared(self, device: torch.device) -> Shared | None:
        is_whole = self.shards is None
        # Of what is not sharded in a sharded model, rank 0's is read.
        held = self.in_place(device).held(self.manifest) if is_whole else self.held(device, torch.distributed.get_rank())
        own = _storages(self.model)
        found = {name: part for name, part in (held or {}).items() if _can_be_shared(part[1], device, own)}
        is_enough = bool(found) if is_whole else held is not None and len(found) == len(held)
        return Shared.of(found) if is_enough else None

    def table(self, shared: Shared) -> dict[str, Any]:
        """Returns JSON values with which engine processes open what `shared` describes."""
        return shared.table(_storages(self.model))

    @property
    def pools(self) -> dict[torch.device, Any]:
        """What is known of the memory of all ranks of a sharded model, by device (`worker.refit.transport.trainer_ranks`)."""
        return self._known.once("pools", dict)

    def _check(self) -> None:
        if not self._known.snapshot.holds(self.model):
            raise RefitError("refit: the model has changed since it was described; make a Source for every refit")

    @cached_property
    def _state(self) -> dict[str, torch.Tensor]:
        return layout(self.model, self.scope)


def _can_be_shared(tensor: torch.Tensor, device: torch.device, own: Container[int]) -> bool:
    """Returns whether another process can open a tensor's memory, at one of some addresses on a GPU or shared on the host."""
    storage = tensor.untyped_storage()
    if tensor.device != device or storage.data_ptr() not in own:
        return False
    return device.type == "cuda" or (storage.is_shared() and storage.filename is None)


def _storages(model: torch.nn.Module) -> dict[int, torch.UntypedStorage]:
    """Returns the memory of a model by address; of a sharded one (``DTensor``) this rank's."""
    tensors = (*model.parameters(), *model.buffers())
    own = (tensor.to_local() if is_sharded(tensor) else tensor for tensor in tensors)
    return {storage.data_ptr(): storage for storage in (tensor.detach().untyped_storage() for tensor in own)}


def _place(tensor: torch.Tensor) -> Place:
    storage = tensor.untyped_storage()
    return Place(storage.data_ptr(), storage.nbytes(), tensor.storage_offset() * tensor.element_size())
