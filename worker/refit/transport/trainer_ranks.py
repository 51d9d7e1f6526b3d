"""All ranks of a sharded trainer, whose memory engine processes on the same machine read: none goes on without the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist

from worker.errors import TransferError
from worker.refit.transport.group import BY_PIECES, REFUSED, WHOLE, Ranks
from worker.refit.weights.source import Source


class _FailedElsewhereError(TransferError):
    """All ranks know that one has failed."""

    def __init__(self) -> None:
        super().__init__("refit: it failed on another rank of the trainer, whose error says why")


class SharedPool:
    """What all ranks of a trainer hold, on the side of one of them.

    Attributes:
        key: Stands for the places of all shards.
        tables: For each rank, how its memory is opened and what lies where in it.
    """

    def __init__(self, ranks: Ranks, key: str, tables: Sequence[Mapping[str, Any]]) -> None:
        """Takes what `of` found."""
        self._ranks = ranks
        self.key = key
        self.tables = tables

    @classmethod
    def of(cls, source: Source, device: torch.device, timeout_s: float) -> SharedPool | None:
        """Shares this rank's shards, together with all other ranks; None if the memory of any cannot be shared.

        Args:
            source: What is sent.
            device: Where this rank's shards lie.
            timeout_s: Seconds to wait for the other ranks at each step.

        Raises:
            TransferError: Another rank's shards cannot be described, or a rank died or took too long.
        """
        ranks, known = Ranks(dist.group.WORLD, device, timeout_s), source.pools
        keys = _from_all(ranks, lambda: own.key if (own := source.shared(device)) is not None else "")
        if "" in keys:
            return None
        if device not in known or known[device][0] != keys:
            known[device] = keys, _from_all(ranks, lambda: source.table(device))
        return cls(ranks, ".".join(keys), known[device][1])

    @contextmanager
    def together(self) -> Iterator[None]:
        """Has all ranks fail where one does, and stay until none reads their memory any more."""
        try:
            yield
        except _FailedElsewhereError:
            raise
        except BaseException:
            with suppress(TransferError):
                self._ranks.agree(REFUSED)
            raise
        self.agree(by_pieces=True)

    def agree(self, *, by_pieces: bool) -> bool:
        """Returns whether the engine processes of all ranks read by pieces.

        Raises:
            TransferError: The refit of another rank failed.
        """
        vote = self._ranks.agree(BY_PIECES if by_pieces else WHOLE)
        if vote == REFUSED:
            raise _FailedElsewhereError
        return vote == BY_PIECES


def _from_all(ranks: Ranks, find: Callable[[], Any]) -> list[Any]:
    """Returns what each rank finds; all fail where one does."""
    try:
        value = find()
    except BaseException:
        with suppress(TransferError):
            ranks.gather_json(None)
        raise
    found = ranks.gather_json(value)
    if None in found:
        raise _FailedElsewhereError
    return found
