"""A trainer's memory that engine processes on the same machine open once and read at every refit, without a buffer between.

It is that of one rank, of which whole tensors are read, or that of all ranks of a sharded trainer. The tables with which it is
opened go to the engine's processes by sockets (`worker.refit.transport.ipc_zmq`).
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from worker.refit.weights.box import Box, Held, narrowed
from worker.refit.weights.buffers import open_memory, share_memory
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.pieces import Holders, as_one, at_equal_distances, places_of, wanted_pieces

if TYPE_CHECKING:
    from worker.refit.weights.copy_plan import CopyPlan


class Shared(NamedTuple):
    """What a rank of a trainer shares of its model's memory; it keeps no memory alive.

    Attributes:
        key: Stands for these tensors in these places, and for everything that is sent with them.
        names: Their names.
        addresses: Where the memory is that they lie in.
        rows: For each of them its name, its memory's place among the addresses, its part of the whole, stride and offset.
    """

    key: str
    names: frozenset[str]
    addresses: list[int]
    rows: list[list[Any]]

    @classmethod
    def of(cls, held: Held) -> Shared:
        """Describes parts that lie in memory that can be shared."""
        index: dict[int, int] = {}
        rows = [
            [
                name,
                index.setdefault(tensor.untyped_storage().data_ptr(), len(index)),
                *box,
                list(tensor.stride()),
                tensor.storage_offset(),
            ]
            for name, (box, tensor) in held.items()
        ]
        return cls(uuid.uuid4().hex, frozenset(held), list(index), rows)

    def table(self, storages: Mapping[int, torch.UntypedStorage]) -> dict[str, Any]:
        """Returns JSON values from which `Opened` finds these tensors.

        Args:
            storages: The model's memory by address.
        """
        return {"memory": [share_memory(storages[address]) for address in self.addresses], "held": self.rows}


class Copies(NamedTuple):
    """What an engine process reads.

    Attributes:
        parts: Where parts go, and the parts.
        wholes: The parts of the tensors that it reads whole, by name.
    """

    parts: list[tuple[torch.Tensor, torch.Tensor]]
    wholes: dict[str, list[tuple[Box, torch.Tensor]]]


class Opened:
    """The same memory in an engine process.

    Attributes:
        key: Stands for the memory of all ranks.
        manifest: Everything that is sent with it, and what lies in it.
    """

    def __init__(
        self,
        key: str,
        tables: Sequence[Mapping[str, Any]],
        manifest: Manifest,
        device: torch.device,
        *,
        elsewhere: bool,
    ) -> None:
        """Opens the memory of all ranks.

        Args:
            key: Its name.
            tables: For each rank what `Shared.table` returned.
            manifest: What a refit sends.
            device: Where this process computes.
            elsewhere: Open the memory of other GPUs, too.

        Raises:
            TransferError: It is gone, is another user's, or lies on another GPU, or on one that this process does not see.
        """
        self.key, self.manifest = key, manifest
        dtypes = {spec.name: spec.torch_dtype for spec in manifest.tensors}
        self._held: list[dict[str, tuple[Box, torch.Tensor]]] = []
        for table in tables:
            memory = [open_memory(handle, device, elsewhere=elsewhere) for handle in table["memory"]]
            found = {}
            for name, number, start, size, stride, offset in table["held"]:
                whole = memory[number]
                dtype = dtypes[name]
                whole = whole[: whole.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
                found[name] = Box(tuple(start), tuple(size)), whole.as_strided(size, stride, offset)
            self._held.append(found)
        self._near = {
            rank for rank, held in enumerate(self._held) if all(tensor.device == device for _, tensor in held.values())
        }
        self._known: tuple[CopyPlan, Copies] | None = None

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """What the first rank has, by name."""
        return {name: tensor for name, (_, tensor) in self._held[0].items()}

    def copies(self, plan: CopyPlan) -> Copies:
        """Returns what is read, the same as long as the plan is.

        Args:
            plan: Where it goes.

        Raises:
            LookupError: The ranks hold some of it not at all.
        """
        if self._known is None or self._known[0] is not plan:
            self._known = plan, self._found(plan)
        return self._known[1]

    def _found(self, plan: CopyPlan) -> Copies:
        specs = self.manifest.tensors
        index = self.manifest.index
        holders = Holders([{index[name]: box for name, (box, _) in held.items()} for held in self._held])
        wanted = plan.wanted()
        parts, wholes = [], defaultdict(list)
        for rank, pieces in holders.pieces(wanted_pieces(wanted, self.manifest), 0, self._near).items():
            held = [self._held[rank][specs[one.tensor].name] for one in pieces]
            there = [narrowed(tensor, one.box, box).squeeze() for one, (box, tensor) in zip(pieces, held, strict=True)]
            here = [None if place is None else place.squeeze() for place in places_of(pieces, wanted, self.manifest)]
            for members in at_equal_distances(here, there):
                memory = [view for view in here[members.start : members.stop] if view is not None]
                if memory:
                    parts.append((as_one(memory), as_one(there[members.start : members.stop])))
                else:
                    piece = pieces[members.start]
                    wholes[specs[piece.tensor].name].append((piece.box, there[members.start].view(piece.box.size)))
        return Copies(parts, dict(wholes))
