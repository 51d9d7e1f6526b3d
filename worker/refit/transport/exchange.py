"""Refit by pieces: each engine rank receives what it holds, once, from the trainer ranks that hold it.

What goes where is agreed on once (`worker.refit.weights.pieces`), and is the same for every refit as long as no tensor moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from worker.refit.weights.box import Box, Held, Wanted
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.pieces import (
    Holders,
    Piece,
    Run,
    as_one,
    at_equal_distances,
    messages,
    narrowed,
    place_of,
    runs,
    split,
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
        device = self._group.device
        lanes = _Lanes(self._group, {peer: _largest(found) for peer, found in self._peers.items()}, self._is_sender)
        wholes: dict[int, tuple[torch.Tensor, int]] = {}
        for number in range(max(map(len, self._peers.values()), default=0)):
            coming = [(peer, found[number]) for peer, found in self._peers.items() if number < len(found)]
            memory = [
                message.direct if message.direct is not None else lanes.buffer(peer, number)[: message.nbytes]
                for peer, message in coming
            ]
            if self._is_sender:
                lanes.before(number)
                for (_, message), buffer in zip(coming, memory, strict=True):
                    if message.direct is None:
                        for block, part in _parts(message, buffer):
                            part.copy_(block.memory)
            lanes.transfer(number, [(peer, buffer) for (peer, _), buffer in zip(coming, memory, strict=True)])
            if self._is_sender:
                continue
            for (_, message), buffer in zip(coming, memory, strict=True):
                if message.direct is None:
                    for block, part in _parts(message, buffer):
                        if block.memory is not None:
                            block.memory.copy_(part)
                            continue
                        spec = self._manifest.tensors[block.piece.tensor]
                        whole, came = wholes.pop(block.piece.tensor, (None, 0))
                        if whole is None:
                            whole = torch.empty(spec.shape, dtype=spec.torch_dtype, device=device)
                        narrowed(whole, block.piece.box).copy_(part)
                        if came + block.nbytes == spec.nbytes:
                            yield spec.name, whole
                        else:
                            wholes[block.piece.tensor] = whole, came + block.nbytes
            lanes.after(number)
        lanes.close()


def agree_to_send(group: Group, manifest: Manifest, held: Held) -> Exchange | None:
    """Finds out, with all other ranks, what this trainer rank sends; None if a broadcast of everything is less.

    Args:
        group: All ranks.
        manifest: Describes the tensors.
        held: What this rank holds.
    """
    index = {spec.name: number for number, spec in enumerate(manifest.tensors)}
    views = {index[name]: pair for name, pair in held.items()}
    told = group.gather_json({"held": [[number, *box] for number, (box, _) in views.items()]})
    pieces, sent = {}, 0
    holders = Holders([_boxes(one["held"]) for one in told if "held" in one])
    problem = ""
    for engine, (rank, one) in enumerate((rank, one) for rank, one in enumerate(told) if "wanted" in one):
        try:
            mine = holders.pieces(_wanted_pieces(one["wanted"], manifest), engine).get(group.rank, [])
        except LookupError as error:
            problem = str(error)
            break
        pieces[rank] = mine
        sent += sum(piece.box.numel * manifest.tensors[piece.tensor].torch_dtype.itemsize for piece in mine)
    memory = {
        rank: [narrowed(views[piece.tensor][1], piece.box, views[piece.tensor][0]) for piece in found]
        for rank, found in pieces.items()
    }
    return _agreed(group, manifest, pieces, memory, sent, problem, is_sender=True)


def agree_to_receive(group: Group, manifest: Manifest, wanted: Sequence[Wanted]) -> Exchange | None:
    """Finds out, with all other ranks, what this engine rank receives; None if a broadcast of everything is less.

    Args:
        group: All ranks.
        manifest: Describes the tensors.
        wanted: What this rank wants, in the order of its memory.
    """
    index = {spec.name: number for number, spec in enumerate(manifest.tensors)}
    rows = [
        [index[one.name], *(Box.whole(manifest.tensors[index[one.name]].shape) if one.view is None else one.view.box)]
        for one in wanted
    ]
    told = group.gather_json({"wanted": rows})
    holders = Holders([_boxes(one["held"]) for one in told if "held" in one])
    engine = sum("wanted" in one for one in told[: group.rank])
    pieces: dict[int, list[Piece]] = {}
    problem = ""
    try:
        pieces = holders.pieces(_wanted_pieces(rows, manifest), engine)
    except LookupError as error:
        problem = str(error)
    places: dict[int, list[Wanted]] = {}
    for one in wanted:
        places.setdefault(index[one.name], []).append(one)
    memory = {rank: [place_of(piece, places[piece.tensor]) for piece in found] for rank, found in pieces.items()}
    return _agreed(group, manifest, pieces, memory, 0, problem, is_sender=False)


def _agreed(
    group: Group,
    manifest: Manifest,
    pieces: Mapping[int, list[Piece]],
    memory: Mapping[int, list[torch.Tensor | None]],
    sent: int,
    problem: str,
    *,
    is_sender: bool,
) -> Exchange | None:
    own = {rank: _runs(pieces[rank], views, manifest) for rank, views in memory.items()}
    told = group.gather_json({"runs": {str(rank): found for rank, found in own.items()}, "sent": sent, "problem": problem})
    # A broadcast passes from rank to rank, so that its sender sends everything once, after it has gathered what it lacks.
    times = 2.0 if sum(one["sent"] > 0 for one in told) > 1 else 1.1
    everything = sum(spec.nbytes for spec in manifest.tensors)
    if any(one["problem"] for one in told) or max(one["sent"] for one in told) > everything * times:
        return None
    peers = {}
    for rank, found in pieces.items():
        there = [Run(count, bool(linear)) for count, linear in told[rank]["runs"].get(str(group.rank), ())]
        together = messages(found, manifest, own[rank], there)
        if together:
            peers[rank] = [
                _message(found[one.start : one.stop], memory[rank][one.start : one.stop], manifest) for one in together
            ]
    return Exchange(group, peers, manifest, is_sender=is_sender)


def _runs(pieces: Sequence[Piece], memory: Sequence[torch.Tensor | None], manifest: Manifest) -> list[Run]:
    dtypes = (manifest.tensors[piece.tensor].torch_dtype for piece in pieces)  # in another one the engine casts
    return runs(view if view is not None and view.dtype == dtype else None for view, dtype in zip(memory, dtypes, strict=True))


def _message(pieces: Sequence[Piece], memory: Sequence[torch.Tensor | None], manifest: Manifest) -> _Message:
    sizes = [piece.box.numel * manifest.tensors[piece.tensor].torch_dtype.itemsize for piece in pieces]
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


def _boxes(rows: Sequence[Any]) -> dict[int, Box]:
    return {int(number): Box(tuple(start), tuple(size)) for number, start, size in rows}


def _wanted_pieces(rows: Sequence[Any], manifest: Manifest) -> Iterator[Piece]:
    for number, start, size in rows:
        yield from split(int(number), Box(tuple(start), tuple(size)), manifest.tensors[number].torch_dtype.itemsize)


def _largest(found: Sequence[_Message]) -> int:
    return max((message.nbytes for message in found if message.direct is None), default=0)


class _Lanes:
    """Buffers and streams: while one message travels the next is laid into its buffer, or the last taken out of it."""

    def __init__(self, group: Group, sizes: Mapping[int, int], is_sender: bool) -> None:
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

    def close(self) -> None:
        """Has the stream of this thread wait for the link, and `Group.wait` for both."""
        if self._is_cuda:
            self._main.wait_stream(self._link)
            self._group.note(self._main.record_event())
