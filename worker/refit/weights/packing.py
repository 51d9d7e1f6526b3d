"""Which tensors of a refit are broadcast together, and where each of them lies among the others.

Tensors that lie side by side in the trainer's memory, such as the experts of a fused layer, are sent from there as one; so is
a large tensor. Small tensors are laid into a buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

from worker.refit.weights.box import Place
from worker.refit.weights.manifest import Chunk, Manifest, size_of

#: Bytes from which on a tensor is sent from where it lies: a broadcast of this size has the full speed of the link.
_LARGE = 16 << 20


@dataclass(frozen=True, slots=True)
class Packing:
    """What one broadcast after the other holds.

    Attributes:
        manifest: All tensors.
        buffer_bytes: Size above which tensors are not put together.
        chunks: For each broadcast its tensors with their offsets in bytes; the tensors are those of the manifest, in order.
    """

    manifest: Manifest
    buffer_bytes: int
    chunks: Sequence[Chunk]

    @classmethod
    def of(cls, manifest: Manifest, buffer_bytes: int, places: Mapping[str, Place | None]) -> Self:
        """Puts tensors together.

        Args:
            manifest: What is sent.
            buffer_bytes: Size above which tensors are not put together.
            places: By name, where tensors lie that may be sent from there.
        """
        chunks: list[Chunk] = []
        large = min(_LARGE, buffer_bytes)
        for alone, group in groupby(_runs(manifest, buffer_bytes, places), lambda run: size_of(run) >= large):
            runs = list(group)
            chunks += runs if alone else Manifest(tuple(spec for run in runs for spec, _ in run)).chunks(buffer_bytes)
        return cls(manifest, buffer_bytes, chunks)

    @classmethod
    def decode(cls, value: Mapping[str, Any]) -> Self:
        """Undoes `encode`."""
        manifest = Manifest.decode(value["manifest"])
        specs = iter(manifest.tensors)
        return cls(manifest, value["buffer_bytes"], [[(next(specs), offset) for offset in row] for row in value["offsets"]])

    def encode(self) -> dict[str, Any]:
        """Returns JSON values."""
        offsets = [[offset for _, offset in chunk] for chunk in self.chunks]
        return {"manifest": self.manifest.encode(), "buffer_bytes": self.buffer_bytes, "offsets": offsets}


def _runs(manifest: Manifest, buffer_bytes: int, places: Mapping[str, Place | None]) -> Iterator[Chunk]:
    """Yields tensors that lie side by side, with the distance of each from the first."""
    run: Chunk = []
    first: tuple[int, int] | None = None
    for spec in manifest.tensors:
        place = places.get(spec.name)
        start = place.start(spec) if place is not None else None
        end = size_of(run) if run else 0
        is_next = first is not None and start == (first[0], first[1] + end)
        if run and is_next and spec.dtype == run[0][0].dtype and end + spec.nbytes <= buffer_bytes:
            run.append((spec, end))
            continue
        if run:
            yield run
        run, first = [(spec, 0)], start
    if run:
        yield run
