"""What a refit sends of one model: described once, and again after one of the model's tensors has changed place or kind.

Tensors that lie in the memory of the model itself, which an optimizer updates in place, are sent from there, or read there by
engine processes on the same machine. What is made for a refit alone, a gathered ``DTensor`` for one, is none of them.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from worker.errors import RefitError
from worker.refit.weights.box import Box, Part
from worker.refit.weights.buffers import share_memory
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.pool import Shared
from worker.refit.weights.scope import RefitScope, gathered, is_sharded, layout, local
from worker.refit.weights.shards import Shards
from worker.refit.weights.snapshot import Snapshot

#: By model, what was found out about it last.
_described: weakref.WeakKeyDictionary[nn.Module, _Description] = weakref.WeakKeyDictionary()


class _Description:
    """What is true of a model while it stays as it was."""

    def __init__(self, model: nn.Module, scope: RefitScope) -> None:
        self.snapshot = Snapshot(model)
        self.scope = scope
        self.shards = Shards.of(model, scope)
        self.manifest = Manifest.of(layout(model, scope).items()) if self.shards is None else self.shards.manifest
        self.pools: dict[torch.device, Any] = {}
        self.held: dict[tuple[torch.device, int], list[Part] | None] = {}
        self.shared: dict[torch.device, Shared | None] = {}


class Source:
    """The tensors of one model that one refit sends; call it for each pass over names and tensors.

    An optimizer updates a model in place, so from one refit to the next there is nothing to find out again: neither names nor
    shapes, nor which tensors lie where the engine can read them.

    Attributes:
        model: The trainer's model.
        scope: What is sent.
        manifest: Describes it.
        shards: What this rank of a sharded model holds; None if it is not sharded.
        pools: What is known of the memory of all ranks, by device (`worker.refit.transport.trainer_ranks`).
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
        self.manifest, self.shards, self.pools = known.manifest, known.shards, known.pools

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
        held = self._known.held
        if (device, rank) not in held:
            own = list(self._own(device, rank))
            held[device, rank] = [part for part, _ in own] if all(storage is not None for _, storage in own) else None
        return held[device, rank]

    def _own(self, device: torch.device, rank: int) -> Iterator[tuple[Part, torch.UntypedStorage | None]]:
        """Yields what a rank sends, each with the model's memory on the device that it lies in; None if it lies elsewhere."""
        storages, shards = _storages(self.model), self.shards
        for part in self._parts():
            if rank and (shards is None or not shards.is_sharded(part.spec.name)):
                continue  # of what is not sharded, rank 0's is sent
            if part.memory is not None and part.memory.device == device:
                yield part, storages.get(part.memory.untyped_storage().data_ptr())
            else:
                yield part, None

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
        shared = self._known.shared
        if device not in shared:
            shared[device] = self._shared(device)
        return shared[device]

    def _shared(self, device: torch.device) -> Shared | None:
        is_whole = self.shards is None
        own = list(self._own(device, 0 if is_whole else torch.distributed.get_rank()))
        found = [(part, storage) for part, storage in own if storage is not None and _can_be_shared(storage)]
        if not found if is_whole else len(found) < len(own):
            return None
        storages = {storage.data_ptr(): storage for _, storage in found}
        numbers = {address: number for number, address in enumerate(storages)}
        rows = [
            [spec.name, numbers[storage.data_ptr()], *box, memory.stride(), memory.storage_offset()]
            for (spec, box, memory), storage in found
            if memory is not None
        ]
        return Shared(uuid.uuid4().hex, {"memory": [share_memory(storage) for storage in storages.values()], "held": rows})

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
