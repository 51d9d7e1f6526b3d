"""What of a refit's values is not as it was sent last, where most are: those words of 64 bits alone need to travel.

The trainer keeps what it sent, cast as the engine has it: one optimizer step changes every value of a float32 master, and few
of the bfloat16 values that these round to. Words are compared as bits, so that nothing is lost, a NaN or the sign of a zero
included. The unit is a broadcast of the `worker.refit.weights.packing.Packing`; large ones are compared together, because each
comparison waits for the device.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch

from worker.refit.weights.manifest import Chunk, size_of
from worker.refit.weights.packing import Packing

_T = TypeVar("_T")
#: The dtypes that an engine may have, by the number with which a rank votes for one.
DTYPES = {1: torch.bfloat16, 2: torch.float16, 3: torch.float32}
#: Other votes: all values must come; any dtype will do.
DENSE, ANY = 0, 255
#: Bytes of a word.
_WORD = 8
#: Bytes of the trainer's that are compared together.
_TOGETHER = 1 << 31
#: Share of words above which all are sent: 12 bytes for each that changed, beside 8 for every word, and the time to compare.
_LARGEST_SHARE = 1 / 6
#: Refits without a comparison after one that did not pay.
_REST = 8


class Item(NamedTuple):
    """One broadcast of a packing.

    Attributes:
        kind: In which of `DTYPES` all engine ranks have its tensors, in their own order; `DENSE` if they have not.
        number: Its place in the packing.
        chunk: Its tensors.
    """

    kind: int
    number: int
    chunk: Chunk

    @property
    def words(self) -> int:
        """How many words the engine has of it."""
        return word_at(size_of(self.chunk), self.chunk, self.kind)


class Changed(NamedTuple):
    """Words that are not as they were.

    Attributes:
        places: Where they are, ascending, among the words of items that follow each other; int32 [n].
        words: What they are now; int64 [n].
    """

    places: torch.Tensor
    words: torch.Tensor


def word_at(offset: int, chunk: Chunk, kind: int) -> int:
    """Returns the word, in the engine's dtype, that a chunk has at an offset in bytes, in the trainer's."""
    return int(offset // chunk[0][0].torch_dtype.itemsize * DTYPES[kind].itemsize // _WORD)


def can_be_compared(chunk: Chunk) -> bool:
    """Returns whether a chunk is of whole words in any of the dtypes."""
    first = chunk[0][0].torch_dtype
    whole = first.itemsize * (_WORD // torch.bfloat16.itemsize)
    alike = all(spec.torch_dtype is first and not spec.nbytes % whole and not offset % whole for spec, offset in chunk)
    return alike and first in DTYPES.values()


def kinds_of(votes: Iterable[Sequence[int]]) -> list[int]:
    """Returns a kind for each broadcast, `DENSE` where ranks have it in several dtypes.

    Args:
        votes: Each rank's votes on all broadcasts.
    """
    kinds = (set(column) - {ANY} for column in zip(*votes, strict=True))
    return [kind.pop() if len(kind) == 1 else DENSE for kind in kinds]


def in_turn(packing: Packing, kinds: Sequence[int], with_each: Iterable[_T]) -> Iterator[list[tuple[Item, _T]]]:
    """Yields the broadcasts of a packing in the order in which they are sent: what can be compared together, the others alone.

    Args:
        packing: The packing.
        kinds: A kind for each.
        with_each: One object more for each; the next is requested when the ones before have been looked at.
    """
    together: list[tuple[Item, _T]] = []
    size = 0
    for number, (chunk, other) in enumerate(zip(packing.chunks(), with_each, strict=True)):
        item = Item(kinds[number], number, chunk)
        if item.kind == DENSE:
            yield [(item, other)]
            continue
        together.append((item, other))
        size += size_of(chunk)
        if size >= _TOGETHER:
            yield together
            together, size = [], 0
    if together:
        yield together


class Sent:
    """What a trainer sent last; it takes as much memory on its device as the engine's weights.

    Attributes:
        name: Stands for these values; None if there are none to compare with.
        upcoming: Stands for those of the refit that is being sent; None if it is sent without a comparison.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.upcoming: str | None = None
        self._packing: Packing | None = None
        self._held: dict[int, torch.Tensor] = {}
        self._rest = 0

    def begin(self, packing: Packing) -> None:
        """Begins a refit."""
        if packing is not self._packing:
            self._forget()
            self._packing = packing
        self._rest = max(0, self._rest - 1)
        self.upcoming = None if self._rest else uuid.uuid4().hex

    def holds(self, kinds: Sequence[int]) -> bool:
        """Returns whether all that is to be compared was sent before."""
        wanted = {number for number, kind in enumerate(kinds) if kind != DENSE}
        return bool(wanted) and wanted == self._held.keys()

    def keep(self, items: Sequence[tuple[Item, torch.Tensor]]) -> None:
        """Keeps what is sent whole."""
        for item, memory in items:
            words, held = _words(item, memory), self._held.get(item.number)
            if held is not None and held.shape == words.shape:
                held.copy_(words)
            else:
                self._held[item.number] = words.clone()

    def changed(self, items: Sequence[tuple[Item, torch.Tensor]]) -> Changed | None:
        """Returns what is not as it was sent last, and keeps it; None if that is so much that all is to be sent.

        Args:
            items: Broadcasts, and the trainer's memory for each, as [nbytes] uint8.
        """
        ends = torch.tensor([item.words for item, _ in items]).cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        now = [_words(item, memory) for item, memory in items]
        is_other = torch.empty(ends[-1], dtype=torch.bool, device=now[0].device)
        for (item, _), words, start, end in zip(items, now, starts, ends, strict=True):
            torch.ne(words, self._held[item.number], out=is_other[start:end])
        places = is_other.nonzero().view(-1)
        del is_other
        if len(places) > _LARGEST_SHARE * ends[-1]:
            self.keep(items)
            self._rest = _REST + 1
            return None
        cuts = torch.searchsorted(places, torch.tensor([0, *ends], device=places.device)).tolist()
        found = torch.empty_like(places)
        for (item, _), words, start, first, last in zip(items, now, starts, cuts[:-1], cuts[1:], strict=True):
            if first < last:
                local = places[first:last] - start
                found[first:last] = words[local]
                self._held[item.number][local] = found[first:last]
        return Changed(places.int(), found)

    def end(self, kinds: Sequence[int]) -> None:
        """Ends a refit that every rank has; what the engine took in no such way, to verify it for one, leaves all as it was."""
        able = {number for number, kind in enumerate(kinds) if kind != DENSE}
        if not able or self.upcoming is None:
            return
        self._held = {number: held for number, held in self._held.items() if number in able}
        self.name = self.upcoming
        if self._rest:
            self._forget()

    def _forget(self) -> None:
        self.name, self._held = None, {}


def _words(item: Item, memory: torch.Tensor) -> torch.Tensor:
    """Returns what the engine gets of a broadcast, as int64 [words]."""
    if memory.storage_offset() % _WORD:
        memory = memory.clone()
    return memory.view(item.chunk[0][0].torch_dtype).to(DTYPES[item.kind]).view(torch.int64)
