"""What a refit sends of one model: described once, and again after one of the model's tensors has changed place or kind.

Tensors that lie in the memory of the model itself, which an optimizer updates in place, are sent from there, or read there by
engine processes on the same machine. What is made for a refit alone, a gathered ``DTensor`` for one, is none of them.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn

from worker.errors import RefitError
from worker.refit.weights.box import Box, Part, Place, Region
from worker.refit.weights.buffers import share_memory
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.pool import Shared
from worker.refit.weights.scope import RefitScope, gathered, is_sharded, layout, local
from worker.refit.weights.shards import Shards
from worker.refit.weights.snapshot import Snapshot

_T = TypeVar("_T")
#: By model, what was found out about it last.
_described: weakref.WeakKeyDictionary[nn.Module, _Description] = weakref.WeakKeyDictionary()


class _Description:
    """What is true of a model while it stays as it was."""

    def __init__(self, model: nn.Module, scope: RefitScope) -> None:
        self.snapshot = Snapshot(model)
        self.scope = scope
        self.shards = Shards.of(model, scope)
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
            known = _described[model] = _Description(model, self.scope)
        self._known = known
        self.shards = known.shards
        self.manifest: Manifest = known.once(
            "manifest", lambda: Manifest.of(self._state.items()) if known.shards is None else known.shards.manifest
        )

    def __call__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields names and whole tensors; all ranks of a sharded model have to iterate together."""
        yield from self.shards.gathered(self.model) if self.shards is not None else gathered(self._state)

    def held(self, device: torch.device, rank: int) -> list[Part] | None:
        """Returns which part of each tensor a trainer's rank can send from where it lies; None if some must be made first.

        Args:
            device: Where they must lie.
            rank: The trainer's rank; of what is not sharded, rank 0's is sent.

        Raises:
            RefitError: The model's memory has moved since it was described.
        """
        self._check()
        return self._known.once(("held", device, rank), lambda: self._held(device, rank))

    def _held(self, device: torch.device, rank: int) -> list[Part] | None:
        own = self._own(device, rank)
        return [part for part in self._parts() if part.spec.name in own] if None not in own.values() else None

    def _own(self, device: torch.device, rank: int) -> dict[str, Place | None]:
        """Returns the places of what a rank sends; of what is not sharded, rank 0's is sent."""
        shards = self.shards
        return {
            name: place
            for name, place in self._places(device).items()
            if not rank or (shards is not None and shards.is_sharded(name))
        }

    def _places(self, device: torch.device) -> dict[str, Place | None]:
        """Returns where this rank has its parts of the tensors; None for those not in the model's own memory on the device."""
        return self._known.once(("places", device), lambda: self._places_on(device))

    def _places_on(self, device: torch.device) -> dict[str, Place | None]:
        storages = _storages(self.model)
        found: dict[str, Place | None] = {}
        for spec, box, memory in self._parts():
            found[spec.name] = None
            if memory is not None and memory.device == device and (address := memory.untyped_storage().data_ptr()) in storages:
                found[spec.name] = Place(box, address, Region.lying(memory))
        return found

    def _parts(self) -> Iterator[Part]:
        """Yields this rank's parts of the tensors; those that have to be gathered or moved first have no memory."""
        if self.shards is not None:
            yield from self.shards.held(self.model)
            return
        for spec, tensor in zip(self.manifest.tensors, self._state.values(), strict=True):
            is_there = tensor.is_contiguous() and not is_sharded(tensor)
            yield Part(spec, Box.whole(spec.shape), tensor if is_there else None)

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
        storages, is_whole = _storages(self.model), self.shards is None
        own = self._own(device, 0 if is_whole else torch.distributed.get_rank())
        found = {name: place for name, place in own.items() if place is not None and _can_be_shared(storages[place.address])}
        return Shared(uuid.uuid4().hex, found) if (bool(found) if is_whole else len(found) == len(own)) else None

    def table(self, device: torch.device) -> dict[str, Any]:
        """Returns JSON values with which engine processes open what `shared` describes (`worker.refit.weights.pool.Opened`)."""
        shared, index = self.shared(device), dict[int, int]()
        rows = [
            [name, index.setdefault(address, len(index)), *box, list(region.stride), region.offset]
            for name, (box, address, region) in (shared.places.items() if shared is not None else ())
        ]
        storages = _storages(self.model)
        return {"memory": [share_memory(storages[address]) for address in index], "held": rows}

    @property
    def pools(self) -> dict[torch.device, Any]:
        """What is known of the memory of all ranks of a sharded model, by device (`worker.refit.transport.trainer_ranks`)."""
        return self._known.once("pools", dict)

    def _check(self) -> None:
        if not self._known.snapshot.holds(self.model):
            raise RefitError("refit: the model has changed since it was described; make a Source for every refit")

    @property
    def _state(self) -> dict[str, torch.Tensor]:
        return layout(self.model, self.scope)


def _can_be_shared(storage: torch.UntypedStorage) -> bool:
    """Returns whether another process can open some memory: on a GPU, or shared on the host."""
    return storage.device.type == "cuda" or (storage.is_shared() and storage.filename is None)


def _storages(model: torch.nn.Module) -> dict[int, torch.UntypedStorage]:
    """Returns the memory of a model by address; of a sharded one (``DTensor``) this rank's."""
    tensors = (*model.parameters(), *model.buffers())
    storages = (local(tensor).detach().untyped_storage() for tensor in tensors)
    # Where several begin at one address, the longest holds all.
    return {storage.data_ptr(): storage for storage in sorted(storages, key=torch.UntypedStorage.nbytes) if storage.nbytes()}
