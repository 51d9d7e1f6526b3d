"""Refit over a process group of trainer and engine ranks: NCCL on GPUs, gloo on the CPU.

Rank 0 is the trainer's sender. It broadcasts large tensors from where they lie, and lays small ones into buffers. On either
device a gloo group carries what must be agreed on first: what is sent, and every engine rank's vote on it, so that none enters
a broadcast alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import torch

from quirks_core.base.text import listed
from worker.errors import RefitRejectedError
from worker.refit.transport.exchange import agree
from worker.refit.transport.group import SOURCE, Group
from worker.refit.weights.buffers import view
from worker.refit.weights.manifest import Manifest, in_order, size_of
from worker.refit.weights.pieces import BUFFER_BYTES, batches
from worker.refit.weights.source import Source

if TYPE_CHECKING:
    from worker.refit.weights.copy_plan import CopyPlan


class CollectiveSender:
    """The trainer's side; opened once, then used for every refit.

    Every trainer rank that joins must call `send` with the same tensors in the same order. Rank 0's values travel, for which a
    ``DTensor`` is gathered on all of them together; from the third refit on each rank sends what it holds to the engine ranks
    that want it, and nothing is gathered (`worker.refit.transport.exchange`).
    """

    def __init__(
        self,
        ip: str,
        port: int,
        *,
        world_size: int,
        rank: int = 0,
        device: torch.device | str = "cpu",
        timeout_s: float = 120.0,
    ) -> None:
        """Joins the engine's ranks, while the worker's ``init_collective_async`` runs with the same address.

        Args:
            ip: Address of trainer rank 0.
            port: A free port there.
            world_size: Trainer ranks that join and engine ranks.
            rank: This trainer rank.
            device: Where the engine's ranks run: a GPU of this process for NCCL, the CPU for gloo.
            timeout_s: Seconds to wait for the others at each step.

        Raises:
            TransferError: Not all came.
        """
        self._group = Group(ip, port, rank=rank, world_size=world_size, timeout_s=timeout_s, device=device)

    def send(
        self,
        tensors: Callable[[], Iterable[tuple[str, torch.Tensor]]],
        *,
        manifest: Manifest | None = None,
        buffer_bytes: int = 1 << 29,
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Sends a refit, while the worker's ``update_weights_from_collective_async`` runs.

        Args:
            tensors: Called for each pass over names and tensors, on any device: a function such as ``lambda:
                refit.tensors(model, scope)``, or a `worker.refit.weights.source.Source`, which brings its manifest with it.
            manifest: What will be sent; found out by a pass over the tensors if None.
            buffer_bytes: Size above which tensors are not put together; at most 64 MiB count.
            given_up: Called while it waits for GPUs; True ends the wait.

        Raises:
            RefitRejectedError: An engine rank does not accept the manifest; nothing was sent.
            TransferError: A rank died or took too long; this and any other error half-way ends the group for all ranks.
        """
        try:
            manifest = tensors.manifest if isinstance(tensors, Source) else manifest or Manifest.of(tensors())
            group = self._group
            chunk_bytes = min(BUFFER_BYTES, buffer_bytes)
            first, chunk_bytes = group.announce((manifest, chunk_bytes) if group.rank == SOURCE else None)
            held = tensors.held(group.device, group.rank) if isinstance(tensors, Source) else None
            if not (problem := _unlike(manifest, first, group.rank)):
                group.announced = manifest, chunk_bytes  # this object, so that the next refit need not compare it
            is_agreed, exchange = agree(group, first, held, is_sender=True, is_refused=bool(problem))
            if is_agreed:
                if exchange is not None:
                    deque(exchange.run(), maxlen=0)
                else:
                    for memory in self._memory(tensors, manifest, chunk_bytes):
                        group.broadcast_weights(memory)
                group.wait(given_up)
                group.agree(True)
        except BaseException:
            self.close()  # so that no rank waits for this one
            raise
        if not is_agreed:  # by all ranks together, which stay
            why = problem or "rejected by the engine, nothing was sent; the worker's error says why"
            raise RefitRejectedError(f"refit {why}")

    def close(self) -> None:
        """Leaves the group."""
        self._group.close()

    def _memory(
        self, tensors: Callable[[], Iterable[tuple[str, torch.Tensor]]], manifest: Manifest, chunk_bytes: int
    ) -> Iterator[torch.Tensor]:
        """Yields what is broadcast: a large tensor's own memory if it lies there as it is sent, else a buffer."""
        coming, device = in_order(tensors(), manifest), self._group.device
        for chunk in manifest.chunks(chunk_bytes):
            # On all of the trainer's ranks, for tensors may have to be gathered.
            parts = [tensor.to(device).reshape(-1).view(torch.uint8) for _, tensor in islice(coming, len(chunk))]
            memory = parts[0]
            if len(parts) > 1:
                memory = torch.zeros(size_of(chunk), dtype=torch.uint8, device=device)  # between them, too
                for (spec, offset), part in zip(chunk, parts, strict=True):
                    memory[offset : offset + spec.nbytes].copy_(part)
            yield memory if self._group.rank == SOURCE else torch.empty_like(memory)


def _unlike(own: Manifest, first: Manifest, rank: int) -> str:
    """Returns how what a trainer's rank would send differs from what rank 0 does; empty if it does not."""
    if own == first:
        return ""
    different = sorted({spec.name for spec in set(own.tensors) ^ set(first.tensors)})
    return f"rejected: the model of the trainer's rank {rank} is not rank 0's: {listed(different or ['the order of tensors'])}"


class CollectiveStream:
    """An engine rank's end of `CollectiveSender.send`: waits for the manifest, votes, and yields what comes.

    Attributes:
        manifest: What the trainer will send; every rank has accepted it.
        plan: Where tensors are copied; None if they are not.
        by_pieces: Whether this rank receives the parts that it wants, where they go.
        complete: Whether everything was yielded.
        lasts: Tensors have memory of their own.
    """

    complete = False
    lasts = True

    def __init__(
        self,
        group: Group,
        expected: Manifest | None,
        plan: Callable[[Manifest], CopyPlan | None] = lambda _: None,
    ) -> None:
        """Waits for the trainer's manifest.

        Args:
            group: The group that this rank joined.
            expected: What was announced.
            plan: Returns where the tensors of a manifest are copied; None if they are not.

        Raises:
            RefitRejectedError: The manifest differs from what was announced, here or on another rank.
            TransferError: The trainer died or took too long.
        """
        self._group = group
        try:
            self.manifest, self._chunk_bytes = group.announce()
            problem = None
            try:
                self.manifest.check(expected)
            except RefitRejectedError as error:
                problem = error
            self.plan = copies = plan(self.manifest) if problem is None else None
            wanted = copies.wanted if copies is not None and not copies.is_checked else None  # a comparison needs whole tensors
            is_refused = problem is not None
            is_agreed, self._exchange = agree(group, self.manifest, wanted, is_sender=False, is_refused=is_refused)
        except BaseException:
            group.close()  # so that no rank waits for this one
            raise
        if not is_agreed:  # by all ranks together, which stay
            raise problem or RefitRejectedError("refit rejected by another rank; nothing was loaded")
        self.by_pieces = self._exchange is not None

    def borrowed(self) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Yields names and tensors, broadcast by broadcast; of parts none, but an empty list before the first.

        Raises:
            TransferError: The trainer died or took too long.
        """
        if self._exchange is not None:
            yield []
            yield from batches(self._exchange.run())
        else:
            for number, chunk in enumerate(self.manifest.chunks(self._chunk_bytes)):
                memory = torch.empty(size_of(chunk), dtype=torch.uint8, device=self._group.device)
                self._group.broadcast_weights(memory)
                if number == 0:
                    self._group.wait()  # it shows that the trainer sends at all
                yield [(spec.name, view(memory, spec, offset)) for spec, offset in chunk]
        self._group.wait()
        self._group.agree(True)
        self.complete = True

    def __enter__(self) -> CollectiveStream:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Leaves the group if there was an error, so that no rank waits for this one; else the group stays."""
        if error is not None:
            self._group.close()
