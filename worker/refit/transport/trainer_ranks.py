"""What the ranks of a trainer have that engine processes on the same machine read: none goes on without the others."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from worker.refit.transport.group import Ranks
from worker.refit.weights.source import Source


class SharedPool(NamedTuple):
    """The memory of one rank, or of all ranks of a sharded trainer, on the side of one of them.

    Attributes:
        key: Stands for the places of all that lies there; empty if nothing does.
        names: Which tensors lie there.
        tables: For each rank, how its memory is opened and what lies where in it.
        together: Has all ranks fail where one does, and stay until all are through.
    """

    key: str = ""
    names: Container[str] = ()
    tables: Sequence[Mapping[str, Any]] = ()
    together: Callable[[], AbstractContextManager[None]] = nullcontext

    @classmethod
    def of(cls, source: Source, device: torch.device, timeout_s: float) -> SharedPool:
        """Shares what can be shared; of a sharded trainer all ranks do, and all of it or nothing.

        Args:
            source: What is sent.
            device: Where this rank's part of it lies.
            timeout_s: Seconds to wait for the other ranks at each step.

        Raises:
            TransferError: Another rank's memory cannot be described, or a rank died or took too long.
        """
        shards, pools = source.shards, source.pools
        together: Callable[[], AbstractContextManager[None]] = nullcontext
        gather: Callable[[Any], list[Any]] = _alone
        if shards is not None:
            if not shards.has_all_ranks(device):
                return cls()
            ranks = Ranks(dist.group.WORLD, device, timeout_s)
            together, gather = ranks.together, ranks.gather_json
        with together():
            own = source.shared(device)
        keys = gather(own.key if own is not None else "")
        if own is None or "" in keys:
            return cls()
        if device not in pools or pools[device][0] != keys:
            tables = gather(own.table)
            pools[device] = keys, tables, {name for one in tables for name, *_ in one["held"]}
        _, tables, names = pools[device]
        return cls(".".join(keys), names, tables, together)


def _alone(value: Any) -> list[Any]:
    return [value]
