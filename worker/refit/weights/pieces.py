"""Which part of which tensor goes from which trainer rank to which engine rank, and which parts go together in one message.

Trainer ranks report what they hold, engine ranks what they want; each rank then finds the same pieces, in the order in which
the engine rank has them in memory. Pieces that lie side by side in the memory of both are one message, sent and received where
they lie; others are laid into buffers together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, groupby, pairwise
from typing import NamedTuple

import torch

from worker.refit.weights.box import Box, Wanted
from worker.refit.weights.manifest import Manifest

#: Bytes of a buffer for pieces that are sent together; a link has its full speed with messages of this size.
BUFFER_BYTES = 64 << 20
#: Bytes from which on pieces that lie side by side on both sides are sent by themselves.
_LARGE = 8 << 20


class Piece(NamedTuple):
    """A part of a tensor.

    Attributes:
        tensor: The tensor's place in the manifest.
        box: The part.
    """

    tensor: int
    box: Box


class Run(NamedTuple):
    """Pieces that follow one another, as one rank has them in memory.

    Attributes:
        length: How many.
        linear: Whether they lie side by side, each with its elements one after the other.
    """

    length: int
    linear: bool


def split(index: int, box: Box, itemsize: int) -> Iterator[Piece]:
    """Yields a part of a tensor in pieces that fit into a buffer, as far as its first dimensions allow that."""
    axis = next((axis for axis, size in enumerate(box.size) if size > 1), None)
    if box.numel * itemsize <= BUFFER_BYTES or axis is None:
        yield Piece(index, box)
        return
    step = max(1, BUFFER_BYTES * box.size[axis] // (box.numel * itemsize))
    for first in range(0, box.size[axis], step):
        length = min(step, box.size[axis] - first)
        part = Box(
            (*box.start[:axis], box.start[axis] + first, *box.start[axis + 1 :]),
            (*box.size[:axis], length, *box.size[axis + 1 :]),
        )
        yield from split(index, part, itemsize)


class Holders:
    """What each trainer rank holds."""

    def __init__(self, held: Sequence[Mapping[int, Box]]) -> None:
        """Takes for each rank the parts that it holds, by the tensors' places in the manifest."""
        self._ranks: dict[int, dict[Box, list[int]]] = defaultdict(dict)
        for rank, parts in enumerate(held):
            for index, box in parts.items():
                self._ranks[index].setdefault(box, []).append(rank)

    def pieces(self, wanted: Iterable[Piece], engine: int, near: Container[int] = ()) -> dict[int, list[Piece]]:
        """Returns what each trainer rank sends to an engine rank; ranks that hold the same take turns.

        Args:
            wanted: What the engine rank wants, in its order.
            engine: Its number among the engine ranks.
            near: Trainer ranks that are preferred.

        Raises:
            LookupError: Some of it is held by no trainer rank, or parts that are not the same overlap.
        """
        found: dict[int, list[Piece]] = defaultdict(list)
        for number, (index, box) in enumerate(wanted):
            parts: list[Box] = []
            for held, ranks in self._ranks[index].items():
                if (part := box.common(held)) is not None:
                    preferred = [rank for rank in ranks if rank in near] or ranks
                    found[preferred[(number + engine) % len(preferred)]].append(Piece(index, part))
                    parts.append(part)
            if sum(part.numel for part in parts) != box.numel or _overlap(parts):
                raise LookupError(f"tensor {index}: the parts that ranks hold of {box} overlap or leave something out")
        return dict(found)


def _overlap(parts: Sequence[Box]) -> bool:
    spans = [{(part.start[axis], part.size[axis]) for part in parts} for axis in range(len(parts[0].start))]
    apart = [sorted(span) for span in spans if len(span) > 1]
    if len(apart) == 1 and len(apart[0]) == len(parts):  # cut along one axis, as nearly always
        return any(start + size > after for (start, size), (after, _) in pairwise(apart[0]))
    return any(one.common(two) is not None for one, two in combinations(parts, 2))


def runs(views: Iterable[torch.Tensor | None]) -> list[Run]:
    """Returns how pieces lie in memory; None stands for one that is always copied."""
    found: list[Run] = []
    end: tuple[int, int, torch.dtype] | None = None
    for view in views:
        if view is None or not view.is_contiguous():
            found.append(Run(1, False))
            end = None
            continue
        storage, address = view.untyped_storage().data_ptr(), view.data_ptr()
        if end == (storage, address, view.dtype):
            found[-1] = Run(found[-1].length + 1, True)
        else:
            found.append(Run(1, True))
        end = storage, address + view.nbytes, view.dtype
    return found


def messages(pieces: Sequence[Piece], manifest: Manifest, here: Sequence[Run], there: Sequence[Run]) -> list[range]:
    """Returns which pieces go together; both ranks of a pair find the same.

    Args:
        pieces: All that go from one rank to another.
        manifest: Describes the tensors.
        here: How they lie in the memory of one of the two.
        there: How they lie in the other's.
    """
    specs = [manifest.tensors[piece.tensor] for piece in pieces]
    sizes = [piece.box.numel * spec.torch_dtype.itemsize for piece, spec in zip(pieces, specs, strict=True)]
    sides = [[(number, run.linear) for number, run in enumerate(side) for _ in range(run.length)] for side in (here, there)]
    both = list(zip(*sides, strict=True))
    found: list[range] = []
    filled: int | None = None  # bytes of the last message, if more may go into it
    for lie, group in groupby(range(len(pieces)), key=both.__getitem__):
        members = list(group)
        if sum(sizes[index] for index in members) >= _LARGE and all(is_linear for _, is_linear in lie):
            found.append(range(members[0], members[-1] + 1))
            filled = None
            continue
        for index in members:
            is_same = index > 0 and specs[index].dtype == specs[index - 1].dtype
            if filled is not None and is_same and filled + sizes[index] <= BUFFER_BYTES:
                found[-1] = range(found[-1].start, index + 1)
                filled += sizes[index]
            else:
                found.append(range(index, index + 1))
                filled = sizes[index]
    return found


def wanted_pieces(wanted: Iterable[Wanted], manifest: Manifest) -> list[Piece]:
    """Returns what an engine rank wants as pieces.

    Args:
        wanted: What it wants, in the order of its memory.
        manifest: Describes the tensors.
    """
    wholes = ((manifest.index[name], view) for name, view, _ in wanted)
    return [Piece(number, Box.whole(manifest.tensors[number].shape) if view is None else view.box) for number, view in wholes]


def places_of(pieces: Iterable[Piece], wanted: Iterable[Wanted], manifest: Manifest) -> list[torch.Tensor | None]:
    """Returns where each piece goes; None if its tensor is wanted whole.

    Args:
        pieces: Parts of what is wanted.
        wanted: What an engine rank wants.
        manifest: Describes the tensors.
    """
    by_tensor: dict[int, list[Wanted]] = defaultdict(list)
    for one in wanted:
        by_tensor[manifest.index[one.name]].append(one)
    return [_place(piece, by_tensor[piece.tensor]) for piece in pieces]


def at_equal_distances(*sides: Sequence[torch.Tensor | None]) -> Iterator[range]:
    """Yields which neighbours are alike and lie at equal distances, on each of some sides."""
    steps = [[_distance(one, other) for one, other in pairwise(side)] for side in sides]
    together = [None if None in step else step for step in zip(*steps, strict=True)]
    first = 0
    while first < len(sides[0]):
        last = first
        while last < len(together) and together[last] is not None and together[last] == together[first]:
            last += 1
        yield range(first, last + 1)
        first = last + 1


def as_one(views: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns views that are alike and lie at equal distances as one, of one dimension more."""
    first = views[0]
    step = views[1].storage_offset() - first.storage_offset() if len(views) > 1 else 0
    return first.as_strided((len(views), *first.shape), (step, *first.stride()), first.storage_offset())


def _place(piece: Piece, wanted: Iterable[Wanted]) -> torch.Tensor | None:
    for _, view, memory in wanted:
        if view is None or memory is None:
            return None
        if view.box.common(piece.box) == piece.box:
            return view.narrow(memory, piece.box)
    raise AssertionError(f"{piece} was not wanted")


def _distance(one: torch.Tensor | None, other: torch.Tensor | None) -> int | None:
    """Returns how many elements a piece lies behind one that is alike; None if they are not alike."""
    if one is None or other is None or (one.shape, one.stride(), one.dtype) != (other.shape, other.stride(), other.dtype):
        return None
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return None
    step = other.storage_offset() - one.storage_offset()
    return step if step >= 0 else None
