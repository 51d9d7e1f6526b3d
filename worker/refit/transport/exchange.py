"""Refit by pieces: each engine rank receives what it holds, once, from the trainer ranks that hold it.

What goes where is agreed on once (`worker.refit.weights.pieces`), and is the same for every refit as long as no tensor moves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from worker.refit.weights.box import Box, Held, Wanted, narrowed
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.pieces import (
    Holders,
    Piece,
    Run,
    as_one,
    at_equal_distances,
    messages,
    places_of,
    runs,
    split,
    wanted_pieces,
)

if TYPE_CHECKING:
    from worker.refit.transport.group import Group

#: Buffers for each other rank: one is filled, or emptied, while the other is on its way.
_BUFFERS = 2


class _Block(NamedTuple):
    """Pieces of one message that lie at equal distances in memory, as one tensor; or a piece of a whole tensor's."""

    memory: torch.Tensor | None
    piece: Piece
    nbytes: int
    dtype: torch.dtype


@dataclass(slots=True)
class _Message:
    """What goes to or comes from another rank at once.

    Attributes:
        nbytes: Its size.
        direct: The memory that it lies in as it is; None if it goes through a buffer.
        blocks: What a buffer has, one after the other.
    """

    nbytes: int
    direct: torch.Tensor | None
    blocks: list[_Block]


class Exchange:
    """What one rank sends to others, or receives from them."""

    def __init__(self, group: Group, peers: Mapping[int, list[_Message]], manifest: Manifest, *, is_sender: bool) -> None:
        """Takes what `agree` found."""
        self._group = group
        self._peers = peers
        self._manifest = manifest
        self._is_sender = is_sender

    def run(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Sends or receives everything; yields the tensors that were received whole, each when it is complete.

        Raises:
            TransferError: A rank died or took too long.
        """
        wholes: dict[int, tuple[torch.Tensor, int]] = {}
        sizes = {peer: _largest(found) for peer, found in self._peers.items()}
        with _Lanes(self._group, sizes, is_sender=self._is_sender) as lanes:
            for number in range(max(map(len, self._peers.values()), default=0)):
                coming = [(peer, found[number]) for peer, found in self._peers.items() if number < len(found)]
                memory = [
                    message.direct if message.direct is not None else lanes.buffer(peer, number)[: message.nbytes]
                    for peer, message in coming
                ]
                through = (pair for (_, message), part in zip(coming, memory, strict=True) for pair in _parts(message, part))
                if self._is_sender:
                    lanes.before(number)
                    for block, part in through:
                        part.copy_(block.memory)
                lanes.transfer(number, [(peer, part) for (peer, _), part in zip(coming, memory, strict=True)])
                if not self._is_sender:
                    for block, part in through:
                        if block.memory is not None:
                            block.memory.copy_(part)
                        else:
                            yield from self._joined(block, part, wholes)
                    lanes.after(number)

    def _joined(
        self, block: _Block, part: torch.Tensor, wholes: dict[int, tuple[torch.Tensor, int]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Lays a part of a tensor that is received whole beside the others; yields the tensor with its last part."""
        number = block.piece.tensor
        spec = self._manifest.tensors[number]
        whole, came = wholes.pop(number, (None, 0))
        if whole is None:
            whole = torch.empty(spec.shape, dtype=spec.torch_dtype, device=self._group.device)
        narrowed(whole, block.piece.box).copy_(part)
        if came + block.nbytes == spec.nbytes:
            yield spec.name, whole
        else:
            wholes[number] = whole, came + block.nbytes


def agree(group: Group, manifest: Manifest, *, held: Held | None = None, wanted: Sequence[Wanted] = ()) -> Exchange | None:
    """Finds out, with all other ranks, what this one sends or receives; None if a broadcast of everything is less.

    Args:
        group: All ranks.
        manifest: Describes the tensors.
        held: What this trainer rank holds; None on an engine rank.
        wanted: What this engine rank wants, in the order of its memory.
    """
    parts = [Piece(manifest.index[name], box) for name, (box, _) in held.items()] if held is not None else None
    described = group.gather_json({"held": parts, "wanted": wanted_pieces(wanted, manifest)})
    pieces = _pieces(described, group.rank, manifest)
    if pieces is None:
        return None
    if held is None:
        memory = {rank: places_of(some, wanted, manifest) for rank, some in pieces.items()}
    else:
        views = {manifest.index[name]: pair for name, pair in held.items()}
        memory = {
            rank: [narrowed(views[number][1], box, views[number][0]) for number, box in some] for rank, some in pieces.items()
        }
    own = {rank: _runs(pieces[rank], places, manifest) for rank, places in memory.items()}
    runs_of = group.gather_json({str(rank): found for rank, found in own.items()})
    peers = {}
    for rank, found in pieces.items():
        there = [Run(count, bool(linear)) for count, linear in runs_of[rank][str(group.rank)]]
        peers[rank] = [
            _message(found[one.start : one.stop], memory[rank][one.start : one.stop], manifest)
            for one in messages(found, manifest, own[rank], there)
        ]
    return Exchange(group, peers, manifest, is_sender=held is not None)


def _pieces(described: Sequence[Mapping[str, Any]], rank: int, manifest: Manifest) -> dict[int, list[Piece]] | None:
    """Returns what goes between a rank and each other one; None, on all ranks, if a broadcast of everything is less."""
    holders = Holders([dict(map(_piece, one["held"])) for one in described if one["held"] is not None])
    sent: dict[int, int] = defaultdict(int)
    mine: dict[int, list[Piece]] = {}
    for number, engine in enumerate(engine for engine, one in enumerate(described) if one["held"] is None):
        try:
            found = holders.pieces(_split(map(_piece, described[engine]["wanted"]), manifest), number)
        except LookupError:
            return None
        for trainer, some in found.items():
            sent[trainer] += sum(_nbytes(piece, manifest) for piece in some)
        if engine == rank:
            mine = found
        elif rank in found:
            mine[engine] = found[rank]
    # A broadcast passes from rank to rank, so that its sender sends everything once, after it has gathered what it lacks.
    times = 2.0 if len(sent) > 1 else 1.1
    everything = sum(spec.nbytes for spec in manifest.tensors)
    return mine if max(sent.values(), default=0) <= everything * times else None


def _runs(pieces: Sequence[Piece], memory: Sequence[torch.Tensor | None], manifest: Manifest) -> list[Run]:
    dtypes = (manifest.tensors[piece.tensor].torch_dtype for piece in pieces)  # in another one the engine casts
    return runs(view if view is not None and view.dtype == dtype else None for view, dtype in zip(memory, dtypes, strict=True))


def _message(pieces: Sequence[Piece], memory: Sequence[torch.Tensor | None], manifest: Manifest) -> _Message:
    sizes = [_nbytes(piece, manifest) for piece in pieces]
    first = memory[0]
    if first is not None and _runs(pieces, memory, manifest) == [Run(len(pieces), True)]:
        elements = sum(piece.box.numel for piece in pieces)
        return _Message(sum(sizes), first.as_strided((elements,), (1,)).view(torch.uint8), [])
    blocks: list[_Block] = []
    for members in at_equal_distances(memory):
        start = memory[members.start]
        nbytes = sum(sizes[members.start : members.stop])
        if start is not None and len(members) > 1:
            start = as_one(memory[members.start : members.stop])
        dtype = manifest.tensors[pieces[members.start].tensor].torch_dtype
        blocks.append(_Block(start, pieces[members.start], nbytes, dtype))
    return _Message(sum(sizes), None, blocks)


def _parts(message: _Message, buffer: torch.Tensor) -> Iterator[tuple[_Block, torch.Tensor]]:
    """Yields the blocks of a message, each with its part of a buffer in the block's shape."""
    start = 0
    for block in message.blocks:
        part = buffer[start : start + block.nbytes]
        shape = block.piece.box.size if block.memory is None else block.memory.shape
        yield block, part.view(block.dtype).view(shape)
        start += block.nbytes


def _piece(row: Sequence[Any]) -> Piece:
    number, (start, size) = row
    return Piece(number, Box(tuple(start), tuple(size)))


def _split(wanted: Iterable[Piece], manifest: Manifest) -> Iterator[Piece]:
    for piece in wanted:
        yield from split(*piece, manifest.tensors[piece.tensor].torch_dtype.itemsize)


def _nbytes(piece: Piece, manifest: Manifest) -> int:
    return piece.box.numel * int(manifest.tensors[piece.tensor].torch_dtype.itemsize)


def _largest(found: Sequence[_Message]) -> int:
    return max((message.nbytes for message in found if message.direct is None), default=0)


class _Lanes:
    """Buffers and streams: while one message travels the next is laid into its buffer, or the last taken out of it."""

    def __init__(self, group: Group, sizes: Mapping[int, int], *, is_sender: bool) -> None:
        self._group = group
        self._is_sender = is_sender
        self._buffers = {
            peer: [torch.empty(size, dtype=torch.uint8, device=group.device) for _ in range(_BUFFERS)] if size else []
            for peer, size in sizes.items()
        }
        self._is_cuda = group.device.type == "cuda"
        self._free: list[torch.cuda.Event | None] = [None] * _BUFFERS
        if self._is_cuda:
            self._main = torch.cuda.current_stream(group.device)
            self._link = torch.cuda.Stream(group.device)
            self._link.wait_stream(self._main)

    def buffer(self, peer: int, number: int) -> torch.Tensor:
        """Returns the memory of a message that goes through a buffer, as uint8."""
        return self._buffers[peer][number % _BUFFERS]

    def before(self, number: int) -> None:
        """Waits, on the device, until a sender's buffers were sent."""
        if (event := self._free[number % _BUFFERS]) is not None:
            self._main.wait_event(event)

    def transfer(self, number: int, memory: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Sends or receives the messages of one round."""
        if self._is_cuda:
            event = self._free[number % _BUFFERS]
            if self._is_sender:
                self._link.wait_event(self._main.record_event())
            elif event is not None:
                self._link.wait_event(event)
        self._group.exchange(memory, is_sender=self._is_sender, stream=self._link if self._is_cuda else None)
        if self._is_cuda:
            sent = self._link.record_event()
            if self._is_sender:
                self._free[number % _BUFFERS] = sent
            else:
                self._main.wait_event(sent)

    def after(self, number: int) -> None:
        """Notes that a receiver's buffers are empty once the device is so far."""
        if self._is_cuda:
            self._free[number % _BUFFERS] = self._main.record_event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Has the stream of this thread wait for the link, after an error too: buffers must outlive what fills them.

        `Group.wait` waits for both.
        """
        if self._is_cuda:
            self._main.wait_stream(self._link)
            self._group.note(self._main.record_event())
