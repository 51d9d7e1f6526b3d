"""Refit by pieces: each engine rank receives what it holds, once, from the trainer ranks that hold it.

What goes where is agreed on once (`worker.refit.weights.pieces`), and is the same for every refit as long as no tensor moves.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import torch

from worker.errors import TransferError
from worker.refit.transport.group import AS_BEFORE, BY_PIECES, REFUSED, WHOLE, Group
from worker.refit.weights.box import Box, Part
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.pieces import Holders, Run, Wholes, as_one, at_equal_distances, messages, runs, split

#: Buffers for each other rank: one is filled, or emptied, while the other is on its way.
_BUFFERS = 2


@dataclass(slots=True)
class _Message:
    """What goes to or comes from another rank at once.

    Attributes:
        nbytes: Its size.
        direct: The memory that it lies in as it is; None if it goes through a buffer.
        blocks: What a buffer has, one after the other: the first of some pieces that lie at equal distances in memory, and the
            memory of all of them as one tensor; None for a piece of a tensor that comes whole.
    """

    nbytes: int
    direct: torch.Tensor | None
    blocks: list[tuple[Part, torch.Tensor | None]]

    @classmethod
    def of(cls, parts: Sequence[Part]) -> _Message:
        """Puts pieces together."""
        nbytes, first = sum(part.nbytes for part in parts), parts[0].memory
        if first is not None and runs(parts) == [Run(len(parts), True)]:
            elements = sum(part.box.numel for part in parts)
            return cls(nbytes, first.as_strided((elements,), (1,)).view(torch.uint8), [])
        memory = [part.memory for part in parts]
        blocks: list[tuple[Part, torch.Tensor | None]] = []
        for some in at_equal_distances(memory):
            views = [view for view in memory[some] if view is not None]
            blocks.append((parts[some.start], as_one(views) if views else None))
        return cls(nbytes, None, blocks)

    def parts(self, buffer: torch.Tensor) -> Iterator[tuple[Part, torch.Tensor | None, torch.Tensor]]:
        """Yields the blocks, each with its part of a buffer in the block's shape."""
        start = 0
        for first, memory in self.blocks:
            shape, dtype = first.box.size if memory is None else memory.shape, first.spec.torch_dtype
            end = start + math.prod(shape) * dtype.itemsize
            yield first, memory, buffer[start:end].view(dtype).view(shape)
            start = end


class Exchange:
    """What one rank sends to others, or receives from them."""

    def __init__(self, group: Group, peers: Mapping[int, list[_Message]], *, is_sender: bool) -> None:
        """Takes what was found."""
        self._group = group
        self._peers = peers
        self._is_sender = is_sender

    def run(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Sends or receives everything; yields the tensors that were received whole, each when it is complete.

        Raises:
            TransferError: A rank died or took too long.
        """
        wholes = Wholes(self._group.device)
        sizes = {
            peer: max((message.nbytes for message in found if message.direct is None), default=0)
            for peer, found in self._peers.items()
        }
        with _Lanes(self._group, sizes, is_sender=self._is_sender) as lanes:
            for number in range(max(map(len, self._peers.values()), default=0)):
                coming = [(peer, found[number]) for peer, found in self._peers.items() if number < len(found)]
                memory = [
                    message.direct if message.direct is not None else lanes.buffer(peer, number)[: message.nbytes]
                    for peer, message in coming
                ]
                through = (block for (_, message), part in zip(coming, memory, strict=True) for block in message.parts(part))
                if self._is_sender:
                    lanes.before(number)
                    for _, held, part in through:
                        part.copy_(held)
                lanes.transfer(number, [(peer, part) for (peer, _), part in zip(coming, memory, strict=True)])
                if not self._is_sender:
                    for first, room, part in through:
                        if room is not None:
                            room.copy_(part)
                        else:
                            yield from wholes.add(first, part)
                    lanes.after(number)


def agree(
    group: Group, manifest: Manifest, parts: Sequence[Part] | None, *, is_sender: bool, is_refused: bool = False
) -> tuple[bool, Exchange | None]:
    """Agrees on a refit with all other ranks; what goes where is found out again if a rank has other parts than last time.

    Args:
        group: All ranks.
        manifest: Describes the tensors.
        parts: What this trainer rank holds, or what this engine rank wants, in the order of its memory, the same object as long
            as nothing changes; None if this rank takes part in broadcasts alone.
        is_sender: Whether this is a rank of the trainer.
        is_refused: This rank refuses the refit.

    Returns:
        Whether no rank refuses it; and what this one sends or receives by pieces, None if everything is broadcast.
    """
    known = group.agreed
    vote = WHOLE if parts is None else AS_BEFORE if known is not None and known[0] is parts else BY_PIECES
    vote = group.agree(REFUSED if is_refused else vote)
    if vote == BY_PIECES and parts is not None:
        known = group.agreed = parts, _found(group, manifest, parts, is_sender=is_sender)
    return vote != REFUSED, known[1] if known is not None and vote > WHOLE else None


def _found(group: Group, manifest: Manifest, parts: Sequence[Part], *, is_sender: bool) -> Exchange | None:
    """Finds out, with all other ranks, what this one sends or receives; None if a broadcast of everything is less."""
    rows = [(manifest.index[part.spec.name], part.box) for part in parts]
    described = group.gather_json({"held": rows if is_sender else None, "wanted": [] if is_sender else rows})
    held = [_parts(one["held"], manifest) for one in described if one["held"] is not None]
    wanted = [_parts(one["wanted"], manifest) for one in described if one["held"] is None]
    (held + wanted)[group.rank][:] = parts  # with their memory
    pieces = _pieces(held, wanted, group.rank, manifest.nbytes)
    if pieces is None:
        return None
    own = {rank: runs(found) for rank, found in pieces.items()}
    runs_of = group.gather_json({str(rank): found for rank, found in own.items()})
    peers = {}
    for rank, found in pieces.items():
        there = [Run(count, bool(linear)) for count, linear in runs_of[rank][str(group.rank)]]
        peers[rank] = [_Message.of(one) for one in messages(found, own[rank], there)]
    return Exchange(group, peers, is_sender=is_sender)


def _parts(rows: Sequence[Any], manifest: Manifest) -> list[Part]:
    """Returns what another rank described."""
    return [Part(manifest.tensors[number], Box(tuple(start), tuple(size))) for number, (start, size) in rows]


def _pieces(
    held: Sequence[Sequence[Part]], wanted: Sequence[Sequence[Part]], rank: int, everything: int
) -> dict[int, list[Part]] | None:
    """Returns what goes between a rank and each other one; None, on all ranks, if a broadcast of everything is less."""
    holders = Holders(held)
    sent: dict[int, int] = defaultdict(int)
    mine: dict[int, list[Part]] = {}
    for number, parts in enumerate(wanted):
        try:
            found = holders.pieces(chain.from_iterable(map(split, parts)), number)
        except TransferError:
            return None
        engine = len(held) + number
        for trainer, pairs in found.items():
            sent[trainer] += sum(here.nbytes for here, _ in pairs)
            if engine == rank:
                mine[trainer] = [here for here, _ in pairs]
            elif trainer == rank:
                mine[engine] = [there for _, there in pairs]
    # A broadcast passes from rank to rank, so that its sender sends everything once, after it has gathered what it lacks.
    times = 2.0 if len(sent) > 1 else 1.1
    return mine if max(sent.values(), default=0) <= everything * times else None


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
