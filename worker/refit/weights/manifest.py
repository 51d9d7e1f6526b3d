"""What a refit will send: the name, dtype and shape of every tensor, agreed on before a model is touched."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from quirks_core.base.errors import shortened
from quirks_core.base.text import listed
from worker.errors import RefitRejectedError

if TYPE_CHECKING:
    import torch

#: Where tensors start in a buffer, in bytes: a multiple of every dtype's size, and what GPUs copy fastest.
ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor, without its values.

    Attributes:
        name: Its name in a checkpoint.
        dtype: torch's name of the dtype, such as ``bfloat16``.
        shape: Its full shape, whatever shard a rank holds.
        torch_dtype: The dtype itself.
        nbytes: Size in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    torch_dtype: torch.dtype = field(init=False, repr=False, compare=False)
    nbytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Computes once what every refit needs, for thousands of tensors."""
        import torch

        dtype = getattr(torch, self.dtype)
        object.__setattr__(self, "torch_dtype", dtype)
        object.__setattr__(self, "nbytes", math.prod(self.shape) * int(dtype.itemsize))

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


#: The tensors of one buffer, each with its offset in bytes.
Chunk = list[tuple[TensorSpec, int]]


def size_of(chunk: Chunk) -> int:
    """Returns how many bytes the tensors of a buffer take."""
    spec, offset = chunk[-1]
    return offset + spec.nbytes


@dataclass(frozen=True)
class Manifest:
    """Every tensor of a refit, in the order in which they are sent.

    Attributes:
        tensors: The tensors.
        announced: False for a checkpoint's tensors, of which a refit may send others, or in another float dtype.
    """

    tensors: tuple[TensorSpec, ...]
    announced: bool = field(default=True, compare=False)
    _accepted: list[Manifest | None] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, torch.Tensor]]) -> Manifest:
        """Describes tensors; a ``DTensor`` by its full shape, without gathering it."""
        return cls(tuple(_spec(name, tensor.shape, tensor.dtype) for name, tensor in tensors))

    @classmethod
    def parse(cls, info: Mapping[str, Any]) -> Manifest:
        """Reads what a trainer announces.

        Args:
            info: ``{name: (shape, dtype)}``; shapes are sequences of sizes, dtypes ``torch.dtype`` or their names.

        Raises:
            RefitRejectedError: It does not have that form, or announces nothing.
        """
        if not info:
            raise RefitRejectedError("refit: state_dict_info announces no tensors")
        found, problems = [], []
        for name, value in info.items():
            try:
                shape, dtype = value
                found.append(_spec(name, shape, dtype))
            except (TypeError, ValueError, AttributeError) as error:
                problems.append(f"state_dict_info[{name!r}] must be (shape, dtype), not {shortened(repr(value))}: {error}")
        if problems:
            raise RefitRejectedError("refit: " + "; ".join(problems))
        return cls(tuple(found))

    @classmethod
    def decode(cls, rows: Sequence[Sequence[Any]]) -> Manifest:
        """Undoes `encode`."""
        return cls(tuple(_spec(name, shape, dtype) for name, dtype, shape in rows))

    def encode(self) -> list[list[Any]]:
        """Returns ``[name, dtype, shape]`` rows of JSON values."""
        return [[spec.name, spec.dtype, list(spec.shape)] for spec in self.tensors]

    @cached_property
    def index(self) -> dict[str, int]:
        """The place of each tensor by name."""
        return {spec.name: number for number, spec in enumerate(self.tensors)}

    @cached_property
    def nbytes(self) -> int:
        """The size of all of them, in bytes."""
        return sum(spec.nbytes for spec in self.tensors)

    def check(self, expected: Manifest | None = None) -> None:
        """Makes sure that a refit may begin; what was accepted last is not compared again.

        Args:
            expected: What was announced, or the engine's checkpoint; only duplicates are looked for if None.

        Raises:
            RefitRejectedError: Names are sent twice; or, beside what was announced, missing, unexpected, or of another dtype or
                shape; or, beside a checkpoint, of another size or not of floats. The message lists all of it.
        """
        if self._accepted and self._accepted[0] is expected:
            return
        counts = Counter(spec.name for spec in self.tensors)
        problems = ["" if counts else "the trainer sends no tensors"]
        problems.append(_listing("sent twice", [name for name, count in counts.items() if count > 1]))
        if expected is not None and not expected.announced:
            held = {spec.name: spec for spec in expected.tensors}
            strange = [problem for spec in self.tensors if (problem := _unlike(spec, held.get(spec.name)))]
            problems.append(_listing("unlike the checkpoint's (announce what is meant: prepare_refit_info_async)", strange))
        elif expected is not None:
            wanted = {spec.name: spec for spec in expected.tensors}
            problems.append(_listing("missing", [name for name in wanted if name not in counts]))
            problems.append(_listing("unexpected", [name for name in counts if name not in wanted]))
            differing = [
                f"{spec.name} is {spec}, announced as {wanted[spec.name]}"
                for spec in self.tensors
                if spec.name in wanted and spec != wanted[spec.name]
            ]
            problems.append(_listing("different", differing))
        if found := [problem for problem in problems if problem]:
            raise RefitRejectedError("refit rejected, nothing was loaded: " + "; ".join(found))
        self._accepted[:] = [expected]

    def without(self, names: Container[str]) -> Manifest:
        """Returns the same without some tensors."""
        return Manifest(tuple(spec for spec in self.tensors if spec.name not in names))

    def chunks(self, buffer_bytes: int) -> Iterator[Chunk]:
        """Lays the tensors into buffers, in order; both sides of a transfer do so alike.

        Args:
            buffer_bytes: Size of a buffer; see `buffer_size`.

        Yields:
            For each buffer its tensors with their offsets in bytes.
        """
        chunk: Chunk = []
        end = 0
        for spec in self.tensors:
            if chunk and end + spec.nbytes > buffer_bytes:
                yield chunk
                chunk, end = [], 0
            chunk.append((spec, end))
            end += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
        if chunk:
            yield chunk

    def buffer_size(self, wanted_bytes: int) -> int:
        """Returns the size of a buffer in bytes: what is wanted, but room for the largest tensor, and not more than all."""
        largest = max((spec.nbytes for spec in self.tensors), default=0)
        everything = sum(-(-spec.nbytes // ALIGNMENT) * ALIGNMENT for spec in self.tensors)
        return max(ALIGNMENT, largest, min(wanted_bytes, everything))


def in_order(tensors: Iterable[tuple[str, torch.Tensor]], manifest: Manifest) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields a trainer's tensors, each compared with its manifest.

    Raises:
        RefitRejectedError: One is not the one of the manifest.
    """
    source = iter(tensors)
    for spec in manifest.tensors:
        name, tensor = next(source, ("nothing", None))
        found = None if tensor is None else _spec(name, tensor.shape, tensor.dtype)
        if tensor is None or found != spec:
            raise RefitRejectedError(
                f"refit: the trainer yields {name} {found or ''} where its manifest has {spec.name} {spec}"
            )
        yield name, tensor


def _spec(name: str, shape: Iterable[int], dtype: torch.dtype | str) -> TensorSpec:
    import torch

    text = str(dtype).removeprefix("torch.")
    if not isinstance(name, str) or not isinstance(getattr(torch, text, None), torch.dtype):
        raise ValueError(f"{dtype!r} is not a dtype of torch")
    sizes = tuple(int(size) for size in shape)
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape {list(sizes)} has a negative size")
    return TensorSpec(name, text, sizes)


def _unlike(spec: TensorSpec, held: TensorSpec | None) -> str | None:
    """Returns why a tensor cannot be loaded where a checkpoint has another, or none; axes may be in another order."""
    if held is not None and spec.shape == held.shape and spec.dtype == held.dtype:
        return None
    floats = spec.torch_dtype.is_floating_point and (held is None or held.torch_dtype.is_floating_point)
    if not floats and (held is None or spec.dtype != held.dtype):
        return f"{spec.name} is {spec}, {f'in the checkpoint {held}' if held else 'not of floats'}"
    if held is not None and _sizes(spec) != _sizes(held):
        return f"{spec.name} is {spec}, in the checkpoint {held}"
    return None


def _sizes(spec: TensorSpec) -> list[int]:
    return sorted(size for size in spec.shape if size != 1)


def _listing(title: str, names: Sequence[str]) -> str:
    return f"{len(names)} {title}: {listed(names)}" if names else ""
