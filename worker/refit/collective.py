"""Refit over a process group of trainer and engine ranks: NCCL through vLLM's own backend on GPUs, gloo on the CPU.

Rank 0 is the trainer's sender. Both sides lay the tensors into the same packed buffers. On either device a gloo group carries
what must be agreed on first: the manifest, and every engine rank's vote on it, so that nobody enters a broadcast alone.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from quirks_core.errors import words
from worker.errors import RefitRejectedError, TransferError
from worker.refit.buffers import view
from worker.refit.manifest import Chunk, Manifest, in_order

#: Rank that sends.
SOURCE = 0
_ACCEPTED, _REJECTED = 1, 0


class Group:
    """A gloo group of its own, beside whatever process group the trainer has.

    Attributes:
        store: The rendezvous; both sides may leave notes in it.
        rank: This process.
        world_size: Trainer ranks and engine ranks.
    """

    def __init__(self, ip: str, port: int, *, rank: int, world_size: int, timeout_s: float) -> None:
        """Meets the others; every rank must come within the time limit.

        Args:
            ip: Address of trainer rank 0, which waits there.
            port: Its port.
            rank: This process; trainer ranks come first.
            world_size: Number of all ranks.
            timeout_s: Seconds to wait for the others, here and in every later step.

        Raises:
            TransferError: Not all came, or the port is taken.
        """
        limit = timedelta(seconds=timeout_s)
        try:
            self.store: Any = dist.TCPStore(ip, port, world_size, is_master=rank == SOURCE, timeout=limit)
            self._group: Any = dist.ProcessGroupGloo(dist.PrefixStore("model-quirks", self.store), rank, world_size, limit)
        except (RuntimeError, ValueError) as error:
            raise TransferError(
                f"refit: rank {rank} of {world_size} could not join the group at {ip}:{port} within {timeout_s:g} s: "
                f"{words(error)}; the trainer's ranks and every engine rank must join at the same time"
            ) from error
        self.rank, self.world_size = rank, world_size

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Gives everybody rank 0's tensor.

        Args:
            tensor: On the CPU, contiguous; read on rank 0, overwritten elsewhere.

        Raises:
            TransferError: A rank died or took too long.
        """
        self._do("a broadcast", lambda group: group.broadcast(tensor, SOURCE))

    def broadcast_json(self, value: Any = None) -> Any:
        """Gives everybody rank 0's JSON value."""
        payload = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        size = torch.tensor([len(payload)])
        self.broadcast(size)
        if self.rank != SOURCE:
            payload = torch.empty(int(size), dtype=torch.uint8)
        self.broadcast(payload)
        return json.loads(bytes(payload.numpy()))

    def agree(self, accepted: bool) -> bool:
        """Tells whether every rank accepts."""
        vote = torch.tensor([_ACCEPTED if accepted else _REJECTED])
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        self._do("a vote", lambda group: group.allreduce([vote], options))
        return bool(vote.item())

    def close(self) -> None:
        """Leaves the group."""
        self._group = self.store = None  # their ends close the connections; the group's `shutdown` leaves them open

    def _do(self, what: str, start: Callable[[Any], Any]) -> None:
        if self._group is None:
            raise TransferError("refit: the collective was left after a failure; trainer and engine must open a new one")
        try:
            start(self._group).wait()
        except RuntimeError as error:
            raise TransferError(
                f"refit: {what} of the collective failed, a rank died or took too long: {words(error)}"
            ) from error


class CollectiveSender:
    """The trainer's side; opened once, then used for every refit.

    Every trainer rank that joins must call `send` with the same tensors in the same order (a ``DTensor`` is gathered on all
    of them together); rank 0's values travel.
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
        """Meets the engine's ranks, while the worker's ``init_collective_async`` runs with the same address.

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
        self._device = torch.device(device)
        self._group = Group(ip, port, rank=rank, world_size=world_size, timeout_s=timeout_s)
        self._nccl = None
        if self._device.type == "cuda":
            from worker.refit import nccl

            if rank == SOURCE:
                with closing(socket.socket()) as probe:
                    probe.bind(("", 0))
                    self._group.store.set("nccl_port", str(probe.getsockname()[1]))
            self._nccl = nccl.Sender(
                ip, int(self._group.store.get("nccl_port")), rank=rank, world_size=world_size, device=self._device
            )

    def send(
        self,
        tensors: Callable[[], Iterable[tuple[str, torch.Tensor]]],
        *,
        manifest: Manifest | None = None,
        buffer_bytes: int = 1 << 29,
    ) -> None:
        """Sends a refit, while the worker's ``update_weights_from_collective_async`` runs.

        Args:
            tensors: Called for each pass over names and tensors, such as a `worker.refit.source.Source`.
            manifest: What will be sent; found out by a pass over the tensors if None.
            buffer_bytes: Size of a packed buffer; it grows to the largest tensor.

        Raises:
            RefitRejectedError: An engine rank does not accept the manifest; nothing was sent.
            TransferError: A rank died or took too long; this and any other error half-way ends the group for all ranks.
        """
        manifest = manifest or Manifest.of(tensors())
        manifest.check()
        size = manifest.buffer_size(buffer_bytes)
        self._group.broadcast_json({"manifest": manifest.encode(), "buffer_bytes": size})
        if not self._group.agree(True):
            raise RefitRejectedError("refit rejected by the engine, nothing was sent; the worker's error says why")
        try:
            self._broadcast(in_order(tensors(), manifest), manifest, size)
        except BaseException:
            self.close()  # so that nobody waits for what will not come
            raise

    def close(self) -> None:
        """Leaves the group."""
        if self._nccl is not None:
            self._nccl.close()
        self._group.close()

    def _broadcast(self, tensors: Iterator[tuple[str, torch.Tensor]], manifest: Manifest, size: int) -> None:
        if self._nccl is not None:
            self._nccl.send(tensors, size)
            return
        memory = torch.empty(size, dtype=torch.uint8)
        for chunk in manifest.chunks(size):
            for spec, offset in chunk:
                view(memory, spec, offset).copy_(next(tensors)[1])
            self._group.broadcast(memory[: _end(chunk)])
        self._group.agree(True)


class CollectiveStream:
    """An engine rank's end of `CollectiveSender.send`: waits for the manifest, votes, and yields what comes.

    Attributes:
        manifest: What the trainer will send; every rank has accepted it.
        buffer_bytes: Size of a packed buffer.
        complete: Whether everything was yielded.
    """

    complete = False

    def __init__(self, group: Group, expected: Manifest | None) -> None:
        """Waits for the trainer's manifest.

        Args:
            group: The group that this rank joined.
            expected: What was announced.

        Raises:
            RefitRejectedError: The manifest differs from what was announced, here or on another rank.
            TransferError: The trainer died or took too long.
        """
        self._group = group
        hello = group.broadcast_json()
        self.manifest = Manifest.decode(hello["manifest"])
        self.buffer_bytes = int(hello["buffer_bytes"])
        problem = None
        try:
            self.manifest.check(expected)
        except RefitRejectedError as error:
            problem = error
        if not group.agree(problem is None):
            raise problem or RefitRejectedError("refit rejected by another rank; nothing was loaded")

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields names and tensors, in memory of their own.

        Raises:
            TransferError: The trainer died or took too long.
        """
        for tensors in self.borrowed():
            yield from tensors

    def borrowed(self) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Yields the same, buffer by buffer."""
        for chunk in self.manifest.chunks(self.buffer_bytes):
            memory = torch.empty(_end(chunk), dtype=torch.uint8)
            self._group.broadcast(memory)
            yield [(spec.name, view(memory, spec, offset)) for spec, offset in chunk]
        self._group.agree(True)
        self.complete = True

    def close(self, error: BaseException | None = None) -> None:
        """Leaves the group if there was an error, so that nobody waits for this rank; else the group lives on."""
        if error is not None:
            self._group.close()

    def __enter__(self) -> CollectiveStream:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close(error)


def _end(chunk: Chunk) -> int:
    spec, offset = chunk[-1]
    return offset + spec.nbytes
