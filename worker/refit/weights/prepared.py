"""Layers that an engine processes after loading (packs, quantises) and whose loaders do nothing but copy.

The loaders take far longer than the copies: a refit copies into the memory that they would fill, and has the layer processed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch

from worker.refit.weights.box import Region


class Write(NamedTuple):
    """What a refit writes: a part of a tensor of the trainer's, or a constant such as the padding of a vocabulary.

    Attributes:
        source: Name of the trainer's tensor; empty for a constant.
        taken: What is taken of it, which is contiguous; None for a constant.
        destination: Name of the engine's parameter or buffer.
        written: Where it goes.
        value: The constant.
    """

    source: str
    taken: Region | None
    destination: str
    written: Region
    value: float = 0.0


class ReloadedLayer(Protocol):
    """A layer of an engine that can be loaded again by itself."""

    def open(self) -> Mapping[str, torch.Tensor]:
        """Gives the layer memory to load into; returns its tensors by their names in the model."""

    def process(self) -> None:
        """Processes what was loaded, and puts it in force where the engine reads it."""

    def abandon(self) -> None:
        """Gives an open layer its tensors of before back."""


class FullLayer(NamedTuple):
    """A layer whose memory is full.

    Attributes:
        layer: The layer.
        held: Its tensors as they are loaded, by their names in the model.
        came: Those of the trainer's tensors that lie in it byte for byte, in the order of its memory.
    """

    layer: ReloadedLayer
    held: Mapping[str, torch.Tensor]
    came: list[tuple[str, torch.Tensor]]


class PreparedLayers:
    """Such layers of one model.

    Attributes:
        sources: Names of the trainer's tensors that fill them.
    """

    def __init__(self, layers: Mapping[str, ReloadedLayer], writes: Iterable[Write]) -> None:
        """Takes layers by name, and all that fills them."""
        self._layers = layers
        self._constants: dict[str, list[Write]] = defaultdict(list)
        self._copies: dict[str, list[tuple[str, Write, Region]]] = defaultdict(list)
        self._wanted: dict[str, set[str]] = defaultdict(set)
        for write in writes:
            layer = write.destination.rpartition(".")[0]
            if write.taken is None:
                self._constants[layer].append(write)
            else:
                self._copies[write.source].append((layer, write, write.taken))
                self._wanted[layer].add(write.source)
        self.sources = frozenset(self._copies)
        self._open: dict[str, FullLayer] = {}
        self._missing: dict[str, set[str]] = {}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def fill(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
        """Copies those of some tensors that fill layers; returns when the copies are queued on the device.

        Returns:
            What was copied in another order or dtype than its own.
        """
        written, taken, others = [], [], []
        with torch._C.DisableTorchFunctionSubclass():  # vLLM's parameters pass each call through Python otherwise
            for name, tensor in tensors:
                copies = self._copies.get(name, ())
                for layer, write, region in copies:
                    found = self._open.get(layer) or self._opened(layer)
                    self._missing[layer].discard(name)
                    written.append(write.written.of(found.held[write.destination]))
                    taken.append(region.of(tensor))
                if copies:
                    if len(copies) == 1 and _is_whole(written[-1], taken[-1], tensor):
                        found.came.append((name, written[-1]))
                    else:
                        others.append((name, tensor))
            if written:
                torch._foreach_copy_(written, taken)
        return others

    def full(self) -> Iterator[FullLayer]:
        """Yields the layers that are full, once each; whoever gets them has them processed."""
        for name in [name for name, missing in self._missing.items() if not missing]:
            found = self._open[name]
            found.came.sort(key=lambda pair: pair[1].data_ptr())
            yield found
            del self._open[name], self._missing[name]

    def abandon(self) -> None:
        """Gives layers that are not full their tensors of before back."""
        for found in self._open.values():
            found.layer.abandon()
        self._open, self._missing = {}, {}

    def _opened(self, name: str) -> FullLayer:
        layer = self._layers[name]
        try:
            found = self._open[name] = FullLayer(layer, layer.open(), [])
        except BaseException:
            layer.abandon()
            raise
        self._missing[name] = set(self._wanted[name])
        for write in self._constants[name]:
            write.written.of(found.held[write.destination]).fill_(write.value)
        return found


def _is_whole(written: torch.Tensor, taken: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Returns whether all bytes of a tensor are written in their order."""
    is_whole: bool = taken.numel() == tensor.numel() and written.dtype == tensor.dtype
    return is_whole and written.is_contiguous() and taken.is_contiguous()


def covers(writes: Sequence[Write], elements: int, device: torch.device) -> bool:
    """Returns whether copies and constants cover every one of a number of contiguous elements exactly once."""
    times = torch.zeros(elements, dtype=torch.uint8, device=device)
    for write in writes:
        region = write.written
        last = region.offset + sum((size - 1) * step for size, step in zip(region.size, region.stride, strict=True))
        if region.offset < 0 or last >= elements:
            return False
        region.of(times).add_(1)
    return bool((times == 1).all())
