"""The engine's side of a sparse refit: changed words go into its parameters' memory, if that is as the last refit left it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from worker.refit.weights.copy_plan import CopyPlan
from worker.refit.weights.digest import Standing
from worker.refit.weights.manifest import Chunk, size_of
from worker.refit.weights.packing import Packing
from worker.refit.weights.sparse import ANY, DENSE, DTYPES, Changed, Item, can_be_compared, word_at

#: Bytes of a broadcast for each part of it that goes elsewhere, at least: below it, to send all takes less time.
_PART = 8 << 20
#: Parts that any broadcast may have.
_PARTS = 2
_WORD = torch.int64.itemsize


class _Part(NamedTuple):
    """A part of a broadcast.

    Attributes:
        start: Its first word in the broadcast.
        words: The engine's memory for it; int64 [words].
    """

    start: int
    words: torch.Tensor


class Patch:
    """Which of the broadcasts of a packing an engine's process can take as changed words, and where these go.

    Attributes:
        plan: Says what belongs where.
        packing: The packing.
        votes: For each broadcast the number of the engine's dtype (`DTYPES`), or `DENSE`, or `ANY` if none of it belongs here.
    """

    def __init__(self, plan: CopyPlan, packing: Packing) -> None:
        """Finds the memory; it stays as long as the plan fits."""
        self.plan = plan
        self.packing = packing
        self._name: str | None = None
        self._digests: dict[str, str] = {}
        self._standing = Standing(whole=True)
        self._parts: list[list[_Part]] = []
        self._hidden: dict[str, torch.Tensor] = {}
        self.votes: list[int] = []
        for chunk in packing.chunks():
            vote, parts = self._place(chunk)
            self.votes.append(vote)
            self._parts.append(parts)

    def keep(self, name: str | None) -> None:
        """Notes that the engine has what the trainer calls by a name, if it calls it anything.

        Each byte is read for a digest: the memory may be changed before the next refit, by whatever way.
        """
        self._name, self._digests = name, {} if name is None else self._digest()

    def holds(self, name: str) -> bool:
        """Returns whether the engine still has what the trainer calls by a name, byte by byte."""
        return name == self._name and self._digest() == self._digests

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def apply(self, items: Sequence[Item], changed: Changed) -> None:
        """Writes changed words; returns when that is queued on the device.

        Args:
            items: The broadcasts, whose words follow each other.
            changed: Their words.
        """
        base, starts, parts = 0, list[int](), list[_Part]()
        for item in items:
            parts += (found := self._parts[item.number])
            starts += [base + part.start for part in found]
            base += item.words
        bounds = [(start, start + len(part.words)) for start, part in zip(starts, parts, strict=True)]
        cuts = torch.searchsorted(changed.places, torch.tensor(bounds, dtype=torch.int32, device=changed.places.device))
        for start, part, (first, last) in zip(starts, parts, cuts.tolist(), strict=True):
            if first < last:
                part.words[(changed.places[first:last] - start).long()] = changed.words[first:last]
        self.plan.show(
            (spec.name, self._hidden[spec.name]) for item in items for spec, _ in item.chunk if spec.name in self._hidden
        )

    def _digest(self) -> dict[str, str]:
        parts = (part for parts in self._parts for part in parts)
        return self._standing.digests((str(number), part.words) for number, part in enumerate(parts))

    def _place(self, chunk: Chunk) -> tuple[int, list[_Part]]:
        """Returns the vote on a chunk, and where its words go."""
        if not can_be_compared(chunk):
            return DENSE, []
        targets: list[tuple[int, torch.Tensor]] = []
        for spec, offset in chunk:
            found = self.plan.in_own_order(spec)
            if found is None:
                return DENSE, []
            if spec.name in self.plan.hidden:
                self._hidden[spec.name] = found[0][1]
            targets += [(offset + place * spec.torch_dtype.itemsize, written) for place, written in found]
        dtypes = {written.dtype for _, written in targets}
        if not dtypes:
            return ANY, []
        kind = next((kind for kind, dtype in DTYPES.items() if dtypes == {dtype}), DENSE)
        if kind == DENSE:
            return DENSE, []
        size = DTYPES[kind].itemsize
        parts: list[_Part] = []
        for offset, written in sorted(targets, key=lambda target: target[0]):
            place = offset // chunk[0][0].torch_dtype.itemsize * size
            if any(number % _WORD for number in (place, written.nbytes, written.storage_offset() * size)):
                return DENSE, []
            _add(parts, _Part(word_at(offset, chunk, kind), written.as_strided((written.numel(),), (1,)).view(torch.int64)))
        return (kind, parts) if len(parts) <= _PARTS + size_of(chunk) // _PART else (DENSE, [])


def _add(parts: list[_Part], part: _Part) -> None:
    """Adds a part; if it goes on where the last ends, in both memories, they are one."""
    if parts:
        start, words = parts[-1]
        memory = words.untyped_storage().data_ptr() == part.words.untyped_storage().data_ptr()
        if memory and part.start == start + len(words) and part.words.data_ptr() == words.data_ptr() + words.nbytes:
            parts[-1] = _Part(start, words.as_strided((len(words) + len(part.words),), (1,)))
            return
    parts.append(part)
