"""The memory of all ranks of a sharded trainer, which engine processes on the same machine open once and read at every refit.

Each rank shares the memory of its shards; the tables with which it is opened go from rank to rank by the process group that the
trainer has anyway, and to the engine's processes by each rank's sockets (`worker.refit.transport.ipc_zmq`).
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from quirks_core.base.errors import words
from worker.errors import TransferError
from worker.refit.weights.box import Box, Held
from worker.refit.weights.buffers import open_memory, share_memory
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.pieces import Holders, Piece, as_one, at_equal_distances, narrowed, place_of

if TYPE_CHECKING:
    from worker.refit.weights.copy_plan import CopyPlan

#: Votes of the trainer's ranks.
_FAILED, _WHOLE, _BY_PIECES = -1, 0, 1


class _FailedElsewhereError(TransferError):
    """All ranks know that one has failed."""


class Ranks:
    """All ranks of a trainer, in its own default process group."""

    def __init__(self, device: torch.device, timeout_s: float) -> None:
        """Takes the device of this rank's shards, with which that group works, and the seconds to wait for the others."""
        self._device = device
        self._limit = timedelta(seconds=timeout_s)

    def gather(self, value: Any) -> list[Any]:
        """Gives every rank the JSON values of all, in their order."""
        payload = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [int(size) for size in self._all(torch.tensor([len(payload)]))]
        rows = self._all(torch.nn.functional.pad(payload, (0, max(sizes) - len(payload))))
        return [json.loads(bytes(row[:size].cpu().numpy())) for row, size in zip(rows, sizes, strict=True)]

    def agree(self, vote: int) -> int:
        """Returns the least that any rank votes for."""
        least = torch.tensor([vote], device=self._device)
        self._wait(dist.all_reduce(least, dist.ReduceOp.MIN, async_op=True))
        return int(least)

    def _all(self, own: torch.Tensor) -> list[torch.Tensor]:
        own = own.to(self._device)
        found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        self._wait(dist.all_gather(found, own, async_op=True))
        return found

    def _wait(self, work: Any) -> None:
        try:
            work.wait(self._limit)
        except RuntimeError as error:
            raise TransferError(f"refit: a rank of the trainer died or took too long: {words(error)}") from error


class SharedPool:
    """What all ranks of a trainer hold, on the side of one of them.

    Attributes:
        key: Stands for the places of all shards.
        tables: For each rank, how its memory is opened and what lies where in it.
    """

    def __init__(self, ranks: Ranks, key: str, tables: Sequence[Mapping[str, Any]]) -> None:
        """Takes what `of` found."""
        self._ranks = ranks
        self.key = key
        self.tables = tables

    @classmethod
    def of(
        cls,
        shared: Callable[[], Mapping[str, Any] | None],
        known: dict[torch.device, Any],
        device: torch.device,
        timeout_s: float,
    ) -> SharedPool | None:
        """Shares this rank's shards, together with all other ranks; None if the memory of any cannot be shared.

        Args:
            shared: Returns this rank's `shared_table`; None if its memory cannot be shared.
            known: What is known of all ranks of the same model, by device; this adds to it.
            device: Where this rank's shards lie.
            timeout_s: Seconds to wait for the other ranks at each step.

        Raises:
            TransferError: Another rank's shards cannot be described, or a rank died or took too long.
        """
        ranks = Ranks(device, timeout_s)
        try:
            own = shared()
        except BaseException:
            with suppress(TransferError):
                ranks.gather(None)
            raise
        keys = ranks.gather(own["key"] if own is not None else "")
        if None in keys:
            raise _failed_elsewhere()
        if "" in keys:
            return None
        if device not in known or known[device][0] != keys:
            known[device] = keys, ranks.gather(own)
        return cls(ranks, ".".join(keys), known[device][1])

    @contextmanager
    def together(self) -> Iterator[None]:
        """Has all ranks fail where one does, and stay until none reads their memory any more."""
        try:
            yield
        except _FailedElsewhereError:
            raise
        except BaseException:
            with suppress(TransferError):
                self._ranks.agree(_FAILED)
            raise
        self._check(self._ranks.agree(_BY_PIECES))

    def agree(self, by_pieces: bool) -> bool:
        """Returns whether the engine processes of all ranks read by pieces.

        Raises:
            TransferError: The refit of another rank failed.
        """
        vote = self._ranks.agree(_BY_PIECES if by_pieces else _WHOLE)
        self._check(vote)
        return vote == _BY_PIECES

    def _check(self, vote: int) -> None:
        if vote == _FAILED:
            raise _failed_elsewhere()


def _failed_elsewhere() -> TransferError:
    return _FailedElsewhereError("refit: it failed on another rank of the trainer, whose error says why")


def shared_table(held: Held) -> dict[str, Any]:
    """Returns JSON values from which `OpenedPool` finds what one rank holds.

    Args:
        held: What it holds, in memory that can be shared.
    """
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for _, tensor in held.values()}
    index = {address: number for number, address in enumerate(storages)}
    rows = [
        [name, index[tensor.untyped_storage().data_ptr()], *box, list(tensor.stride()), tensor.storage_offset()]
        for name, (box, tensor) in held.items()
    ]
    return {"key": uuid.uuid4().hex, "memory": [share_memory(one) for one in storages.values()], "held": rows}


class Copies(NamedTuple):
    """What an engine process reads.

    Attributes:
        parts: Where parts go, and the parts.
        wholes: The parts of the tensors that it reads whole, by name.
    """

    parts: list[tuple[torch.Tensor, torch.Tensor]]
    wholes: dict[str, list[tuple[Box, torch.Tensor]]]


class OpenedPool:
    """The same memory in an engine process.

    Attributes:
        key: What `SharedPool.key` is.
        manifest: Describes the tensors.
    """

    def __init__(self, key: str, tables: Sequence[Mapping[str, Any]], manifest: Manifest, device: torch.device) -> None:
        """Opens the memory of all ranks.

        Args:
            key: Its name.
            tables: `SharedPool.tables`.
            manifest: What a refit sends.
            device: Where this process computes.

        Raises:
            TransferError: It is gone, is another user's, or lies on a GPU that this process does not see.
        """
        self.key, self.manifest = key, manifest
        dtypes = {spec.name: spec.torch_dtype for spec in manifest.tensors}
        self._held: list[dict[str, tuple[Box, torch.Tensor]]] = []
        for table in tables:
            memory = [open_memory(handle, device, elsewhere=True) for handle in table["memory"]]
            found = {}
            for name, number, start, size, stride, offset in table["held"]:
                whole = memory[number]
                dtype = dtypes[name]
                whole = whole[: whole.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
                found[name] = Box(tuple(start), tuple(size)), whole.as_strided(size, stride, offset)
            self._held.append(found)
        self._known: tuple[CopyPlan, Copies] | None = None

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
        index = {spec.name: number for number, spec in enumerate(specs)}
        holders = Holders([{index[name]: box for name, (box, _) in held.items()} for held in self._held])
        wanted = plan.wanted()
        places = defaultdict(list)
        for one in wanted:
            places[index[one.name]].append(one)
        boxes = [
            Piece(index[one.name], one.view.box if one.view is not None else Box.whole(specs[index[one.name]].shape))
            for one in wanted
        ]
        parts, wholes = [], defaultdict(list)
        for rank, pieces in holders.pieces(boxes, 0).items():
            held = [self._held[rank][specs[one.tensor].name] for one in pieces]
            there = [narrowed(tensor, one.box, box).squeeze() for one, (box, tensor) in zip(pieces, held, strict=True)]
            places_here = (place_of(one, places[one.tensor]) for one in pieces)
            here = [None if place is None else place.squeeze() for place in places_here]
            for members in at_equal_distances(here, there):
                memory = [view for view in here[members.start : members.stop] if view is not None]
                if memory:
                    parts.append((as_one(memory), as_one(there[members.start : members.stop])))
                else:
                    piece = pieces[members.start]
                    wholes[specs[piece.tensor].name].append((piece.box, there[members.start].view(piece.box.size)))
        return Copies(parts, dict(wholes))
