"""A digest of each tensor's bytes, made where the tensor lies: the one that the ledger and the trainer's side share.

Equal bytes have equal digests on every device and in every memory layout. vLLM's own checksum copies each tensor to the host
for SHA-256 (1.8 GB/s on one core); this one is a position-weighted sum of 64-bit words (Fletcher's checksum), which reads each
tensor once. It distinguishes changes, and does not withstand a forger.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from worker.refit.weights.pieces import as_one, at_equal_distances

#: Rows that words are summed in; the sums are weighted by their place. Up to 128 KiB each word is a row.
_ROWS = 2**14
#: Rows of a larger tensor that is read whole: every so many words belong to one row. Words of one row may change places unseen,
#: so that their distance is one that no layout of a model has: 4 (words that a GPU loads at once) times a prime.
_APART = 4 * 4093
#: Words that a sample has at least (2 MiB), and those at each place: 128 bytes, what a GPU fetches at once.
_SAMPLED, _FETCHED = 2**18, 16
#: Samples are 4 * n words apart, where n has none of these factors: each matrix row is read at other columns.
_FACTORS = math.prod((2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31))
#: Mixes the bits of a row's sum, so that sums do not cancel: an odd number (that of SplitMix64).
_ODD = 0x9E3779B97F4A7C15 - 2**64
_WORD = torch.int64.itemsize
_MODULUS = 2**64
#: Tensors whose rows are weighted together; each takes up to 256 KiB of memory twice meanwhile.
_TOGETHER = 8
#: Tensors that are alike and are read together; their sums take 8 MB.
_ALIKE = 64
#: Branches of a CUDA graph: one tensor's rows leave most of a GPU idle. Each branch keeps some 4 MB.
_BRANCHES = 8


class Digester:
    """Makes digests of tensors that pass one by one; they are needed no longer once `add` has returned.

    Args:
        whole: Read every byte. Otherwise of tensors above 2 MiB about that much, at a fixed stride. Both sides of a comparison
            need the same value.
    """

    def __init__(self, *, whole: bool = True) -> None:
        self._whole = whole
        self._names: list[str] = []
        self._sums: dict[torch.device, list[tuple[str, torch.Tensor]]] = defaultdict(list)
        self._totals: dict[torch.device, list[tuple[list[str], torch.Tensor]]] = defaultdict(list)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Takes a tensor of any dtype, shape and strides; nothing is waited for."""
        if tensor.numel():
            self.add_rows(name, _sums(_tables(tensor, whole=self._whole)))
        else:
            self._names.append(name)

    def add_all(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Takes several tensors; those that are alike and lie at equal distances are read by one kernel each time."""
        for some in at_equal_distances([tensor for _, tensor in tensors]):
            for first in range(some.start, some.stop, _ALIKE):
                names, alike = zip(*tensors[first : min(first + _ALIKE, some.stop)], strict=True)
                together = as_one(alike)
                if (
                    len(alike) > 1
                    and alike[0].dim()
                    and _is_plain(alike[0])
                    and not together.stride(0) * together.itemsize % _WORD
                ):
                    words = together.flatten(1).view(torch.int64)
                    self._names += names
                    self._totals[words.device].append((list(names), _totals(_sums(_split(words, whole=self._whole)))))
                else:
                    for name, tensor in zip(names, alike, strict=True):
                        self.add(name, tensor)

    def add_rows(self, name: str, rows: torch.Tensor) -> None:
        """Takes the sums of a tensor's rows, as int64 [rows]."""
        self._names.append(name)
        self._sums[rows.device].append((name, rows))
        if len(self._sums[rows.device]) == _TOGETHER:
            self._weigh(rows.device)

    def result(self) -> dict[str, str]:
        """Returns 32 hexadecimal digits by name, all zeros for a tensor without elements; each device is waited for once."""
        for device in list(self._sums):
            self._weigh(device)
        found = dict.fromkeys(self._names, "0" * 32)
        for group in self._totals.values():
            names, totals = zip(*group, strict=True)
            found |= _digits(list(chain.from_iterable(names)), torch.cat(totals))
        return found

    def _weigh(self, device: torch.device) -> None:
        names, rows = zip(*self._sums.pop(device), strict=True)
        self._totals[device].append((list(names), _totals(_padded(rows))))


def digests(tensors: Iterable[tuple[str, torch.Tensor]], *, whole: bool = True) -> dict[str, str]:
    """Returns a digest of each tensor by name; arguments and answer as for `Digester`."""
    digester = Digester(whole=whole)
    for name, tensor in tensors:
        digester.add(name, tensor)
    return digester.result()


def form(tensor: torch.Tensor) -> str:
    """Returns a tensor's dtype and shape: bytes are compared where both sides have the same."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def parts(name: str, tensor: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields a tensor, or those inside of one that only wraps others, as quantised ones do."""
    if torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor):
        for inner in tensor.__tensor_flatten__()[0]:
            yield from parts(f"{name}.{inner}", getattr(tensor, inner))
    else:
        yield name, tensor


class Standing:
    """Makes digests of tensors that mostly stay where they are, again and again: how each one is read is found out once.

    On CUDA the kernels become one graph when the same tensors come a second time, because it takes longer to launch them one by
    one than to run them.

    Args:
        whole: As for `Digester`.

    Attributes:
        forms: The `form` of each tensor by name.
    """

    def __init__(self, *, whole: bool) -> None:
        self.forms: dict[str, str] = {}
        self._whole = whole
        self._known: dict[str, tuple[tuple[Any, ...], list[torch.Tensor]]] = {}
        self._names: tuple[str, ...] = ()
        self._graph: _Graph | None = None

    def digests(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
        """Returns what `digests` returns."""
        others = Digester(whole=self._whole)
        standing: dict[str, list[torch.Tensor]] = {}
        is_new = False
        for name, tensor in tensors:
            place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if (known := self._known.get(name)) is None or known[0] != place:
                is_new = True
                self.forms[name] = form(tensor)
                known = self._known[name] = place, _tables(tensor, whole=self._whole) if _is_plain(tensor) else []
            if known[1]:
                standing[name] = known[1]
            else:
                others.add(name, tensor)
        names = tuple(standing)
        if is_new or names != self._names:
            self._names, self._graph = names, None
        elif self._graph is None and names and all(tables[0].is_cuda for tables in standing.values()):
            self._graph = _Graph(list(standing.values()))
        if self._graph is not None:
            return _digits(names, self._graph.totals()) | others.result()
        for name, tables in standing.items():
            others.add_rows(name, _sums(tables))
        return others.result()


class _Graph:
    """Totals of tensors of one GPU, given by their tables, as a CUDA graph."""

    def __init__(self, tensors: Sequence[list[torch.Tensor]]) -> None:
        device = tensors[0][0].device
        branches = [torch.cuda.Stream(device) for _ in range(_BRANCHES)]
        start = branches[0]
        start.wait_stream(torch.cuda.current_stream(device))
        self._graph = torch.cuda.CUDAGraph()
        totals = []
        with torch.cuda.stream(start):
            self._graph.capture_begin(capture_error_mode="thread_local")  # vLLM has threads that use the GPU
            try:
                for branch in branches[1:]:
                    branch.wait_stream(start)
                for number, first in enumerate(range(0, len(tensors), _TOGETHER)):
                    with torch.cuda.stream(branches[number % _BRANCHES]):
                        totals.append(_totals(_padded([_sums(tables) for tables in tensors[first : first + _TOGETHER]])))
                for branch in branches[1:]:
                    start.wait_stream(branch)
                self._totals = torch.cat(totals)
            finally:
                self._graph.capture_end()

    def totals(self) -> torch.Tensor:
        """Returns int64 [tensors, 2], on the GPU, until the next call."""
        self._graph.replay()
        return self._totals


def _is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor can be read as words where it lies."""
    start = tensor.storage_offset() * tensor.itemsize
    return bool(tensor.numel()) and tensor.is_contiguous() and not start % _WORD and not tensor.nbytes % _WORD


def _sums(tables: list[torch.Tensor]) -> torch.Tensor:
    """Returns the sums of the words of each row, as int64 [..., rows]."""
    sums = [table.sum(-1) for table in tables]
    return sums[0] if len(sums) == 1 else torch.cat(sums, -1)


def _tables(tensor: torch.Tensor, *, whole: bool) -> list[torch.Tensor]:
    """Returns the rows of 64-bit words of a tensor, as int64 [rows, words]; what is left behind the last row is one more."""
    data = tensor.detach().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    if data.storage_offset() % _WORD:
        data = data.clone()
    end = data.numel() // _WORD * _WORD
    tables, rest = _split(data[:end].view(torch.int64), whole=whole), data[end:]
    if rest.numel():
        padded = rest.new_zeros(_WORD)
        padded[: rest.numel()] = rest
        tables.append(padded.view(1, _WORD).view(torch.int64))
    return tables


def _split(words: torch.Tensor, *, whole: bool) -> list[torch.Tensor]:
    """Returns the rows of words [..., words], as int64 [..., rows, words]; each word behind the last row is one more."""
    count = words.shape[-1]
    if count <= _ROWS:
        return [words.unsqueeze(-1)]
    if whole or count <= _SAMPLED:
        known = count - count % _APART
        tables = [words[..., :known].unflatten(-1, (-1, _APART)).transpose(-1, -2)]
    else:
        apart = count // (4 * _ROWS) + 1
        while math.gcd(apart, _FACTORS) > 1:
            apart += 1
        known = count - count % (4 * apart)
        tables = [words[..., :known].unflatten(-1, (-1, 4 * apart))[..., : max(_FETCHED, 4 * apart * _SAMPLED // count)]]
    return [*tables, words[..., known:].unsqueeze(-1)] if known < count else tables


def _padded(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    return pad_sequence(list(rows), batch_first=True)


def _totals(rows: torch.Tensor) -> torch.Tensor:
    """Returns the sum of each tensor's rows, and their sum weighted by position, as int64 [tensors, 2]; `rows` may be lost."""
    mixed = rows.mul_(_ODD)
    mixed ^= mixed >> 32
    return torch.stack([mixed.sum(1), (mixed * torch.arange(mixed.shape[1], device=mixed.device)).sum(1)], 1)


def _digits(names: Sequence[str], totals: torch.Tensor) -> dict[str, str]:
    return {
        name: f"{plain % _MODULUS:016x}{weighted % _MODULUS:016x}"
        for name, (plain, weighted) in zip(names, totals.tolist(), strict=True)
    }
