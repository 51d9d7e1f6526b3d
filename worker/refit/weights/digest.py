"""A digest of each tensor's bytes, made where the tensor lies: the one that the ledger and the trainer's side share.

Equal bytes have equal digests on every device and in every memory layout. vLLM's own checksum copies each tensor to the host
for SHA-256 (1.8 GB/s on one core); this one is a position-weighted sum of 64-bit words (Fletcher's checksum), which reads each
tensor once. It tells changes apart, and does not withstand a forger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch

#: Rows that a tensor is cut into, at most; words are weighted by their row. Up to 128 KiB a row is one word.
_ROWS = 2**14
#: Words of each row that a sample reads: 128 bytes, what a GPU fetches at once.
_SAMPLED = 16
_WORD = torch.int64.itemsize
_MODULUS = 2**64


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

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Takes a tensor of any dtype, shape and strides; nothing is waited for."""
        if tensor.numel():
            self.add_rows(name, _row_sums(tensor, whole=self._whole))
        else:
            self._names.append(name)

    def add_rows(self, name: str, rows: torch.Tensor) -> None:
        """Takes the sums of a tensor's rows, as int64 [rows]."""
        self._names.append(name)
        self._sums[rows.device].append((name, rows))

    def result(self) -> dict[str, str]:
        """Returns 32 hexadecimal digits by name, all zeros for a tensor without elements; each device is waited for once."""
        found = dict.fromkeys(self._names, "0" * 32)
        for group in self._sums.values():
            names, rows = zip(*group, strict=True)
            found |= dict(zip(names, _weighted(rows), strict=True))
        return found


def digests(tensors: Iterable[tuple[str, torch.Tensor]], *, whole: bool = True) -> dict[str, str]:
    """Returns a digest of each tensor by name; arguments and answer as for `Digester`."""
    digester = Digester(whole=whole)
    for name, tensor in tensors:
        digester.add(name, tensor)
    return digester.result()


def parts(name: str, tensor: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields a tensor, or those inside of one that only wraps others, as quantised ones do."""
    if torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor):
        for inner in tensor.__tensor_flatten__()[0]:
            yield from parts(f"{name}.{inner}", getattr(tensor, inner))
    else:
        yield name, tensor.detach()


class Standing:
    """Makes digests of tensors that mostly stay where they are, again and again: how each one is read is found out once.

    Args:
        whole: As for `Digester`.
    """

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._known: dict[str, tuple[tuple[Any, ...], list[torch.Tensor]]] = {}

    def digests(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
        """Returns what `digests` returns."""
        digester = Digester(whole=self._whole)
        for name, tensor in tensors:
            place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if (known := self._known.get(name)) is None or known[0] != place:
                known = self._known[name] = place, _tables(tensor, whole=self._whole) if _is_plain(tensor) else []
            if known[1]:
                digester.add_rows(name, _sums(known[1]))
            else:
                digester.add(name, tensor)
        return digester.result()


def _is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor can be read as words where it lies."""
    start = tensor.storage_offset() * tensor.itemsize
    return bool(tensor.numel()) and tensor.is_contiguous() and not start % _WORD and not tensor.nbytes % _WORD


def _row_sums(tensor: torch.Tensor, *, whole: bool) -> torch.Tensor:
    """Returns the sums of the 64-bit words of each row, as int64 [rows]."""
    return _sums(_tables(tensor, whole=whole))


def _sums(tables: list[torch.Tensor]) -> torch.Tensor:
    sums = [table.sum(1) for table in tables]
    return sums[0] if len(sums) == 1 else torch.cat(sums)


def _tables(tensor: torch.Tensor, *, whole: bool) -> list[torch.Tensor]:
    """Returns the rows of 64-bit words of a tensor, as int64 [rows, words]; what is left behind the last row is one more."""
    data = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if data.storage_offset() % _WORD:
        data = data.clone()
    count = data.numel() // _WORD
    words, rest = data[: count * _WORD].view(torch.int64), data[count * _WORD :]
    width = 1
    while count > width * _ROWS:
        width *= 2
    rows = count // width
    tables = [words[: rows * width].view(rows, width)[:, : width if whole else _SAMPLED]]
    if rows * width < count:
        tables.append(words[rows * width :][None])
    if rest.numel():
        padded = rest.new_zeros(_WORD)
        padded[: rest.numel()] = rest
        tables.append(padded.view(1, _WORD).view(torch.int64))
    return tables


def _weighted(rows: tuple[torch.Tensor, ...]) -> list[str]:
    """Returns the digests of tensors of one device from their rows' sums: their sum, and their sum weighted by position."""
    joined = torch.cat(rows)
    plain = joined.cumsum(0)
    weighted = (joined * torch.arange(len(joined), device=joined.device)).cumsum(0)
    ends = torch.tensor([len(one) for one in rows]).cumsum(0)
    at = torch.stack([plain, weighted])[:, (ends - 1).to(joined.device)].tolist()
    found, before, start = [], (0, 0), 0
    for one, two, end in zip(*at, ends.tolist(), strict=True):
        total = one - before[0]
        found.append(f"{total % _MODULUS:016x}{(two - before[1] - start * total) % _MODULUS:016x}")
        before, start = (one, two), end
    return found
