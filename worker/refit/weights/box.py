"""Parts of tensors: which elements a part has, and where a process has them in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from worker.refit.weights.manifest import TensorSpec


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


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a tensor's memory, in elements.

    Attributes:
        offset: Where it starts, from the tensor's first element.
        size: Its shape.
        stride: Elements between neighbours, by dimension; 0 where one element stands for many.
    """

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def lying(cls, tensor: torch.Tensor) -> Region:
        """Returns where a tensor lies in its memory."""
        return cls(tensor.storage_offset(), tuple(tensor.shape), tensor.stride())

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the part as a view."""
        return tensor.as_strided(self.size, self.stride, tensor.storage_offset() + self.offset)

    def shown(self, shape: Sequence[int]) -> tuple[Box, tuple[int | None, ...]] | None:
        """Returns which part of a contiguous tensor this is; None if it has none in the order of the tensor's dimensions.

        Args:
            shape: The tensor's.

        Returns:
            The part; and for each dimension here that one of the tensor's, None for one of size 1 that it need not have.
        """
        steps = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        start = [self.offset // step % length if step and length else 0 for step, length in zip(steps, shape, strict=True)]
        if sum(index * step for index, step in zip(start, steps, strict=True)) != self.offset:
            return None
        lengths, axes, axis = [1] * len(shape), list[int | None](), 0
        for length, step in zip(self.size, self.stride, strict=True):
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
        return Box(tuple(start), tuple(lengths)), tuple(axes)


class Part(NamedTuple):
    """A part of one of a refit's tensors, and where a process has it.

    Attributes:
        spec: The tensor.
        box: The part.
        memory: It in the tensor's dimensions, or the room for it; None for what another process has, and for what is received
            whole, in memory of its own.
    """

    spec: TensorSpec
    box: Box
    memory: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Its size in bytes as it is sent."""
        return self.box.numel * int(self.spec.torch_dtype.itemsize)

    def narrowed(self, box: Box) -> Part:
        """Returns what of it lies in a box, all of which is in this part."""
        return Part(self.spec, box, None if self.memory is None else narrowed(self.memory, box, self.box))


def narrowed(tensor: torch.Tensor, part: Box, held: Box | None = None) -> torch.Tensor:
    """Returns a part of a tensor, of which `tensor` is all, or what is held."""
    for axis, (start, length) in enumerate(zip(*part, strict=True)):
        tensor = tensor.narrow(axis, start - (held.start[axis] if held is not None else 0), length)
    return tensor
