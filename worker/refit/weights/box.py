"""Parts of tensors that are ranges of indices: what a trainer's rank holds of one, and what an engine's rank wants of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch


class Box(NamedTuple):
    """A range of indices in each dimension of a tensor.

    Attributes:
        start: The first index, by dimension.
        size: How many, by dimension.
    """

    start: tuple[int, ...]
    size: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """Returns all of a tensor of a shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def numel(self) -> int:
        """How many elements."""
        return math.prod(self.size)

    def common(self, other: Box) -> Box | None:
        """Returns what is in both; None if nothing is."""
        start = tuple(map(max, self.start, other.start))
        ends = (min(a + m, b + n) for a, m, b, n in zip(*self, *other, strict=True))
        size = tuple(end - first for end, first in zip(ends, start, strict=True))
        return Box(start, size) if all(length > 0 for length in size) else None


class View(NamedTuple):
    """Which part of a contiguous tensor a view of it shows.

    Attributes:
        box: The part.
        axes: For each dimension of the view that one of the tensor's; None for one of size 1 that the tensor need not have.
    """

    box: Box
    axes: tuple[int | None, ...]

    @classmethod
    def find(cls, shape: Sequence[int], size: Sequence[int], stride: Sequence[int], offset: int) -> View | None:
        """Finds the part that a view shows; None if it shows none in the order of the tensor's dimensions.

        Args:
            shape: The shape of the tensor.
            size: The shape of the view.
            stride: Elements between its neighbours, by dimension.
            offset: Elements before its first one.
        """
        steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        start = [offset // step % length if step and length else 0 for step, length in zip(steps, shape, strict=True)]
        if sum(index * step for index, step in zip(start, steps, strict=True)) != offset:
            return None
        lengths, axes, axis = [1] * len(shape), list[int | None](), 0
        for length, step in zip(size, stride, strict=True):
            if length == 1:
                axes.append(None)
                continue
            while axis < len(shape) and (steps[axis] != step or shape[axis] == 1):
                axis += 1
            if axis == len(shape) or start[axis] + length > shape[axis]:
                return None
            lengths[axis] = length
            axes.append(axis)
            axis += 1
        return cls(Box(tuple(start), tuple(lengths)), tuple(axes))

    def narrow(self, view: torch.Tensor, part: Box) -> torch.Tensor:
        """Returns what a tensor, which is this view, shows of a part that lies in its box."""
        for dimension, axis in enumerate(self.axes):
            if axis is not None:
                view = view.narrow(dimension, part.start[axis] - self.box.start[axis], part.size[axis])
        return view

    def shown(self, held: Box, local: torch.Tensor) -> tuple[Box, torch.Tensor] | None:
        """Returns what a rank has of the view, in the view's dimensions: which part, and the part; None if it has nothing.

        Args:
            held: What it has of the tensor.
            local: That part.
        """
        if (part := self.box.common(held)) is None:
            return None
        local = narrowed(local, part, held)
        start = [0 if axis is None else part.start[axis] - self.box.start[axis] for axis in self.axes]
        size = [1 if axis is None else part.size[axis] for axis in self.axes]
        stride = [1 if axis is None else local.stride(axis) for axis in self.axes]
        return Box(tuple(start), tuple(size)), local.as_strided(size, stride, local.storage_offset())


def narrowed(tensor: torch.Tensor, part: Box, held: Box | None = None) -> torch.Tensor:
    """Returns a part of a tensor, of which `tensor` is all, or what is held."""
    for axis, (start, length) in enumerate(zip(*part, strict=True)):
        tensor = tensor.narrow(axis, start - (held.start[axis] if held is not None else 0), length)
    return tensor


class Wanted(NamedTuple):
    """What an engine rank wants of a tensor of the trainer's.

    Attributes:
        name: The tensor's name.
        view: Which part, and how `memory` shows it; None for all of it, in memory of its own.
        memory: Where it goes; None as above.
    """

    name: str
    view: View | None = None
    memory: torch.Tensor | None = None


#: Which part of a tensor a rank holds, and the part itself, by the tensor's name.
Held: TypeAlias = Mapping[str, tuple[Box, torch.Tensor]]
