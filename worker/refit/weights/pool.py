"""A trainer's memory that engine processes on the same machine open once and read at every refit, without a buffer between.

It is that of one rank, or that of all ranks of a sharded trainer. The tables with which it is opened go to the engine's
processes by sockets (`worker.refit.transport.ipc_zmq`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from worker.refit.weights.box import Box, Part
from worker.refit.weights.buffers import open_memory
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.pieces import Holders, as_one, at_equal_distances

if TYPE_CHECKING:
    from worker.refit.weights.copy_plan import CopyPlan


class Shared(NamedTuple):
    """What a rank of a trainer shares of its model's memory.

    Attributes:
        key: Stands for these tensors in these places, and for everything that is sent with them.
        table: JSON values with which engine processes open the memory (`Opened`).
    """

    key: str
    table: Mapping[str, Any]


class Copies(NamedTuple):
    """What an engine process reads.

    Attributes:
        parts: Where parts go, and the parts.
        wholes: The parts of the tensors that it reads whole, those of one after those of the other.
    """

    parts: list[tuple[torch.Tensor, torch.Tensor]]
    wholes: list[Part]


class Opened:
    """The same memory in an engine process.

    Attributes:
        key: Stands for the memory of all ranks.
        manifest: Everything that is sent with it, and what lies in it.
        names: Which tensors lie in it.
    """

    def __init__(self, key: str, tables: Sequence[Mapping[str, Any]], manifest: Manifest, device: torch.device) -> None:
        """Opens the memory of all ranks.

        Args:
            key: Its name.
            tables: For each rank its `Shared.table`.
            manifest: What a refit sends.
            device: Where this process computes.

        Raises:
            TransferError: It is gone or another user's; or that of one rank lies on another GPU, or that of several on one that
                this process does not see.
        """
        self.key, self.manifest = key, manifest
        specs = {spec.name: spec for spec in manifest.tensors}
        self._held: list[list[Part]] = []
        for table in tables:
            memory = [open_memory(handle, device, elsewhere=len(tables) > 1) for handle in table["memory"]]
            found = []
            for name, number, start, size, stride, offset in table["held"]:
                whole, spec = memory[number], specs[name]
                dtype = spec.torch_dtype
                whole = whole[: whole.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
                found.append(Part(spec, Box(tuple(start), tuple(size)), whole.as_strided(size, stride, offset)))
            self._held.append(found)
        self.names = frozenset(part.spec.name for held in self._held for part in held)
        self._near = {
            rank
            for rank, held in enumerate(self._held)
            if all(part.memory is not None and part.memory.device == device for part in held)
        }
        self._known: tuple[CopyPlan, Copies] | None = None

    @cached_property
    def _wholes(self) -> Copies:
        return self._found(Part(spec, Box.whole(spec.shape)) for spec in self.manifest.tensors)

    def copies(self, plan: CopyPlan | None) -> Copies:
        """Returns what is read, the same as long as the plan is.

        Args:
            plan: Where it goes; None if all of it is wanted whole.

        Raises:
            TransferError: The ranks hold some of it not at all.
        """
        if plan is None:
            return self._wholes
        if self._known is None or self._known[0] is not plan:
            self._known = plan, self._found(plan.wanted)
        return self._known[1]

    def _found(self, wanted: Iterable[Part]) -> Copies:
        parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        wholes: list[Part] = []
        lying = (part for part in wanted if part.spec.name in self.names and part.box.numel)
        for pairs in Holders(self._held).pieces(lying, 0, self._near).values():
            here, there = ([part.memory for part in side] for side in zip(*pairs, strict=True))
            for some in at_equal_distances(here, there):
                to, by = ([view for view in side[some] if view is not None] for side in (here, there))
                if to:
                    parts.append((as_one(to), as_one(by)))
                else:
                    wholes.append(pairs[some.start][1])
        return Copies(parts, sorted(wholes, key=lambda part: self.manifest.index[part.spec.name]))
