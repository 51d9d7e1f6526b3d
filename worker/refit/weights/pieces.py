"""Which part of which tensor goes from which trainer rank to which engine rank, and which parts go together in one message.

Trainer ranks report what they hold, engine ranks what they want; each rank then finds the same pieces, in the order in which
the engine rank has them in memory. Pieces that lie side by side in the memory of both are one message, sent and received where
they lie; others are laid into buffers together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import torch

from worker.errors import TransferError
from worker.refit.weights.box import Box, Part, narrowed

#: Bytes of a buffer for pieces that are sent together; a link has its full speed with messages of this size.
BUFFER_BYTES = 64 << 20
#: Bytes from which on pieces that lie side by side on both sides are sent by themselves.
_LARGE = 8 << 20


class Run(NamedTuple):
    """Pieces that follow one another, as one rank has them in memory.

    Attributes:
        length: How many.
        linear: Whether they lie side by side, each with its elements one after the other.
    """

    length: int
    linear: bool


class Holders:
    """What each trainer rank holds."""

    def __init__(self, held: Sequence[Sequence[Part]]) -> None:
        """Takes the parts of each rank."""
        self._ranks: dict[str, dict[Box, dict[int, Part]]] = defaultdict(lambda: defaultdict(dict))
        for rank, parts in enumerate(held):
            for part in parts:
                self._ranks[part.spec.name][part.box][rank] = part

    def pieces(self, wanted: Iterable[Part], engine: int, near: Container[int] = ()) -> dict[int, list[tuple[Part, Part]]]:
        """Returns what each trainer rank sends to an engine rank; ranks that hold the same take turns.

        Args:
            wanted: What the engine rank wants, in its order.
            engine: Its number among the engine ranks.
            near: Trainer ranks that are preferred.

        Returns:
            For each trainer rank each piece twice: as the engine rank has it, and as the trainer rank has it.

        Raises:
            TransferError: Some of it is held by no trainer rank.
        """
        found: dict[int, list[tuple[Part, Part]]] = defaultdict(list)
        for number, one in enumerate(wanted):
            boxes: list[Box] = []
            for box, ranks in self._ranks[one.spec.name].items():
                if (common := one.box.common(box)) is not None:
                    preferred = [rank for rank in ranks if rank in near] or list(ranks)
                    rank = preferred[(number + engine) % len(preferred)]
                    found[rank].append((one.narrowed(common), ranks[rank].narrowed(common)))
                    boxes.append(common)
            if not boxes or sum(box.numel for box in boxes) != one.box.numel:
                raise TransferError(f"refit: {one.spec.name}: the trainer's ranks do not hold all of {one.box}, or parts twice")
        return dict(found)


class Wholes:
    """Tensors whose parts come one by one, and that are wanted whole.

    Args:
        device: Where they are put together.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begun: dict[str, tuple[torch.Tensor, int]] = {}

    def add(self, part: Part, values: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Lays a part beside the others; yields the tensor with its last one."""
        spec = part.spec
        is_own = values.device == self._device and values is part.memory  # the trainer's, which lasts
        if is_own and part.nbytes == spec.nbytes and values.is_contiguous():
            yield spec.name, values
            return
        whole, came = self._begun.pop(spec.name, (None, 0))
        if whole is None:
            whole = torch.empty(spec.shape, dtype=spec.torch_dtype, device=self._device)
        narrowed(whole, part.box).copy_(values)
        if came + part.nbytes == spec.nbytes:
            yield spec.name, whole
        else:
            self._begun[spec.name] = whole, came + part.nbytes


def batches(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Yields tensors in batches of a buffer's size, for what is done with several of them takes little longer than with one."""
    batch, nbytes = [], 0
    for name, tensor in tensors:
        batch.append((name, tensor))
        nbytes += tensor.nbytes
        if nbytes >= BUFFER_BYTES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch


def split(part: Part) -> Iterator[Part]:
    """Yields a part of a tensor in pieces that fit into a buffer, as far as its first dimensions allow that."""
    start, size = part.box
    axis = next((axis for axis, length in enumerate(size) if length > 1), None)
    if part.nbytes <= BUFFER_BYTES or axis is None:
        yield part
        return
    step = max(1, BUFFER_BYTES * size[axis] // part.nbytes)
    for first in range(0, size[axis], step):
        box = Box(
            (*start[:axis], start[axis] + first, *start[axis + 1 :]),
            (*size[:axis], min(step, size[axis] - first), *size[axis + 1 :]),
        )
        yield from split(part.narrowed(box))


def runs(parts: Iterable[Part]) -> list[Run]:
    """Returns how pieces lie in memory; one without memory, or in another dtype than it is sent in, is always copied."""
    found: list[Run] = []
    end: tuple[int, int, torch.dtype] | None = None
    for spec, _, memory in parts:
        if memory is None or memory.dtype != spec.torch_dtype or not memory.is_contiguous():
            found.append(Run(1, False))
            end = None
            continue
        storage, address = memory.untyped_storage().data_ptr(), memory.data_ptr()
        if end == (storage, address, memory.dtype):
            found[-1] = Run(found[-1].length + 1, True)
        else:
            found.append(Run(1, True))
        end = storage, address + memory.nbytes, memory.dtype
    return found


def messages(parts: Sequence[Part], here: Sequence[Run], there: Sequence[Run]) -> list[Sequence[Part]]:
    """Returns which pieces go together; both ranks of a pair find the same.

    Args:
        parts: All that go from one rank to another.
        here: How they lie in the memory of one of the two.
        there: How they lie in the other's.
    """
    sides = [[(number, run.linear) for number, run in enumerate(side) for _ in range(run.length)] for side in (here, there)]
    found: list[list[Part]] = []
    filled: int | None = None  # bytes of the last message, if more may go into it
    for lie, group in groupby(zip(parts, *sides, strict=True), key=lambda row: row[1:]):
        members = [part for part, *_ in group]
        if sum(part.nbytes for part in members) >= _LARGE and all(is_linear for _, is_linear in lie):
            found.append(members)
            filled = None
            continue
        for part in members:
            if filled is not None and filled + part.nbytes <= BUFFER_BYTES and found[-1][-1].spec.dtype == part.spec.dtype:
                found[-1].append(part)
                filled += part.nbytes
            else:
                found.append([part])
                filled = part.nbytes
    return list(found)


def at_equal_distances(*sides: Sequence[torch.Tensor | None]) -> Iterator[slice]:
    """Yields which neighbours are alike and lie at equal distances, on each of some sides."""
    steps = [[_distance(one, other) for one, other in pairwise(side)] for side in sides]
    together = [None if None in step else step for step in zip(*steps, strict=True)]
    first = 0
    while first < len(sides[0]):
        last = first
        while last < len(together) and together[last] is not None and together[last] == together[first]:
            last += 1
        yield slice(first, last + 1)
        first = last + 1


def as_one(views: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns views that are alike and lie at equal distances as one, of one dimension more."""
    first = views[0]
    step = views[1].storage_offset() - first.storage_offset() if len(views) > 1 else 0
    return first.as_strided((len(views), *first.shape), (step, *first.stride()), first.storage_offset())


def _distance(one: torch.Tensor | None, other: torch.Tensor | None) -> int | None:
    """Returns how many elements a piece lies behind one that is alike; None if they are not alike."""
    if one is None or other is None or (one.shape, one.stride(), one.dtype) != (other.shape, other.stride(), other.dtype):
        return None
    if one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return None
    step = other.storage_offset() - one.storage_offset()
    return step if step >= 0 else None
