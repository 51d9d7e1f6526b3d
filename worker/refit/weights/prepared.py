"""Layers that an engine processes after loading (packs, quantises) and whose loaders do nothing but copy.

The loaders take far longer than the copies: a refit copies into the memory that they would fill, and has the layer processed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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


class PreparedLayers:
    """Such layers of one model, each processed as soon as it is full.

    Attributes:
        sources: Names of the trainer's tensors that fill them.
    """

    def __init__(self, layers: Mapping[str, ReloadedLayer], writes: Iterable[Write]) -> None:
        """Takes layers by name, and all that fills them."""
        self._layers = layers
        self._constants: dict[str, list[Write]] = defaultdict(list)
        self._copies: dict[str, list[Write]] = defaultdict(list)
        self._wanted: dict[str, set[str]] = defaultdict(set)
        for write in writes:
            layer = write.destination.rpartition(".")[0]
            if write.taken is None:
                self._constants[layer].append(write)
            else:
                self._copies[write.source].append(write)
                self._wanted[layer].add(write.source)
        self.sources = frozenset(self._copies)
        self._open: dict[str, Mapping[str, torch.Tensor]] = {}
        self._missing: dict[str, set[str]] = {}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def fill(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copies those of some tensors that fill layers; returns when the copies are queued on the device."""
        written: list[torch.Tensor] = []
        taken: list[torch.Tensor] = []
        with torch._C.DisableTorchFunctionSubclass():  # vLLM's parameters pass each call through Python otherwise
            for name, tensor in tensors:
                for write in self._copies.get(name, ()):
                    layer = write.destination.rpartition(".")[0]
                    held = self._open.get(layer) or self._opened(layer)
                    self._missing[layer].discard(name)
                    assert write.taken is not None  # noqa: S101 - a copy
                    written.append(write.written.of(held[write.destination]))
                    taken.append(write.taken.of(tensor))
            if written:
                torch._foreach_copy_(written, taken)

    def process(self) -> None:
        """Has the layers processed that are full."""
        for layer in [layer for layer, missing in self._missing.items() if not missing]:
            del self._open[layer], self._missing[layer]
            self._layers[layer].process()

    def abandon(self) -> None:
        """Gives layers that are not full their tensors of before back."""
        for layer in self._open:
            self._layers[layer].abandon()
        self._open, self._missing = {}, {}

    def _opened(self, layer: str) -> Mapping[str, torch.Tensor]:
        held = self._open[layer] = self._layers[layer].open()
        self._missing[layer] = set(self._wanted[layer])
        for write in self._constants[layer]:
            write.written.of(held[write.destination]).fill_(write.value)
        return held


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
