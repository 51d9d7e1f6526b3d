"""Processes that agree on a refit over a process group of torch: trainer ranks, or trainer ranks and engine ranks."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from quirks_core.base.errors import words
from worker.errors import TransferError
from worker.refit.transport.channel import free_port
from worker.refit.weights.manifest import Manifest

#: Rank that sends.
SOURCE = 0
#: Votes on a refit, of which the least counts: a rank refuses it or has failed; all comes whole; each engine rank gets what it
#: holds; it gets that as in the last refit that did so.
REFUSED, WHOLE, BY_PIECES, AS_BEFORE = range(4)
#: Seconds between two looks at the device.
_LOOK_S = 50e-6


class Ranks:
    """The processes of a process group."""

    def __init__(self, group: Any, device: torch.device, timeout_s: float) -> None:
        """Takes what ranks agree with.

        Args:
            group: A ``ProcessGroup`` of torch.
            device: A device whose tensors it carries.
            timeout_s: Seconds to wait for the others at each step.
        """
        self._size = int(group.size())
        self._group = group
        self._carried = device
        self._timeout_s = timeout_s

    def gather_json(self, value: Any) -> list[Any]:
        """Gives every rank the JSON values of all, in their order."""
        payload = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = self._numbers(len(payload))
        rows = self._gathered(torch.nn.functional.pad(payload, (0, max(sizes) - len(payload))))
        return [json.loads(bytes(row[:size].numpy())) for row, size in zip(rows, sizes, strict=True)]

    def agree(self, vote: int) -> int:
        """Returns the least that any rank votes for; 0 is no."""
        return min(self._numbers(vote))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Has all ranks fail where one does, and go on once all are through; none may vote in between.

        Raises:
            TransferError: It failed on another rank, or a rank died or took too long.
        """
        try:
            yield
        except BaseException:
            with suppress(TransferError):
                self.agree(REFUSED)
            raise
        if self.agree(WHOLE) == REFUSED:
            raise TransferError("refit: it failed on another rank of the trainer, whose error says why")

    def _numbers(self, own: int) -> list[int]:
        return [int(number) for (number,) in self._gathered(torch.tensor([int(own)]))]

    def _gathered(self, own: torch.Tensor) -> torch.Tensor:
        own = own.to(self._carried)
        found = own.new_empty(self._size, len(own))
        self._do(lambda group: [group.allgather([list(found)], [own])])
        return found.cpu()

    def _do(self, start: Callable[[Any], list[Any]]) -> None:
        """Waits for works of the group."""
        if self._group is None:
            raise TransferError("refit: the collective was left after a failure; trainer and engine must open a new one")
        works = list[Any]()
        try:
            works += start(self._group)
            while works:
                works.pop(0).wait(timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            works.clear()  # they keep the connections open, and this error its frames
            raise TransferError(f"refit: a rank died or took too long: {words(error)}") from error


class Group(Ranks):
    """A gloo group of its own, beside whatever process group the trainer has, and NCCL if the ranks are on GPUs.

    Attributes:
        rank: This process.
        device: Where weights are broadcast from and to.
        announced: What was announced last, and the size of a broadcast in bytes.
        agreed: What this rank last had to send or to receive by pieces, and how (`worker.refit.transport.exchange.agree`).
    """

    def __init__(
        self, ip: str, port: int, *, rank: int, world_size: int, timeout_s: float, device: torch.device | str = "cpu"
    ) -> None:
        """Joins the group; every rank must come within the time limit.

        Args:
            ip: Address of trainer rank 0, which waits there.
            port: Its port.
            rank: This process; trainer ranks come first.
            world_size: Number of all ranks.
            timeout_s: Seconds to wait for the others, here and in every later step.
            device: A GPU of this process for NCCL, the CPU for gloo; of one kind on all ranks.

        Raises:
            TransferError: Not all came, or the port is taken.
        """
        limit = timedelta(seconds=timeout_s)
        try:
            store = dist.TCPStore(ip, port, world_size, is_master=rank == SOURCE, timeout=limit)
            group = dist.ProcessGroupGloo(dist.PrefixStore("model-quirks", store), rank, world_size, limit)
        except (RuntimeError, ValueError) as error:
            raise TransferError(
                f"refit: rank {rank} of {world_size} could not join the group at {ip}:{port} within {timeout_s:g} s: "
                f"{words(error)}; the trainer's ranks and every engine rank must join at the same time"
            ) from error
        super().__init__(group, torch.device("cpu"), timeout_s)
        self.rank, self.device = rank, torch.empty(0, device=device).device  # with its number
        self.announced = Manifest(()), 0
        self.agreed: tuple[object, Any] | None = None
        self._nccl: Any = None
        self._started: deque[torch.cuda.Event] = deque()
        place = self.gather_json([self.device.type, free_port(ip)] if rank == SOURCE else None)[SOURCE]
        if place[0] != self.device.type:
            self.close()
            raise TransferError(
                f"refit: the trainer's rank 0 sends from {place[0]}, rank {rank} computes on {self.device.type}; "
                "give CollectiveSender a device of the kind that the engine runs on"
            )
        if self.device.type == "cuda":
            from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

            with torch.cuda.device(self.device):
                self._nccl = stateless_init_process_group(ip, place[1], rank, world_size, self.device)

    def announce(self, sent: tuple[Manifest, int] | None = None) -> tuple[Manifest, int]:
        """Sends the others what comes and the size of a broadcast, or receives it; that of the last refit is sent by reference.

        Args:
            sent: Both, on rank 0.
        """
        message = self.gather_json(None if sent in (None, self.announced) else (sent[0].encode(), sent[1]))[SOURCE]
        if message is not None:
            self.announced = sent or (Manifest.decode(message[0]), message[1])
        return self.announced

    def broadcast_weights(self, memory: torch.Tensor) -> None:
        """Starts to broadcast rank 0's bytes; `wait` returns when they have arrived.

        Args:
            memory: [nbytes] uint8, on the group's device; read on rank 0, overwritten elsewhere.

        Raises:
            TransferError: A rank died or took too long.
        """
        if self._nccl is None:
            self._do(lambda group: [group.broadcast(memory, SOURCE)])
            return
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream()
            self._nccl.broadcast(memory, SOURCE, stream)
            self._started.append(stream.record_event())

    def wait(self, given_up: Callable[[], bool] = lambda: False) -> None:
        """Waits until all weights are there; leaves the group if that fails, which ends the broadcasts on the device.

        Args:
            given_up: Called while it waits; True ends the wait.

        Raises:
            TransferError: A rank died or took too long, or the wait was given up.
        """
        while self._started:
            event = self._started.popleft()
            end = time.monotonic() + self._timeout_s
            while not event.query():
                if given_up() or time.monotonic() > end:
                    self.close()
                    raise TransferError(
                        f"refit: a broadcast by NCCL did not end within refit.timeout_s = {self._timeout_s:g} s, "
                        "or the other side failed; a rank died or took too long"
                    )
                time.sleep(_LOOK_S)

    def exchange(
        self, memory: Sequence[tuple[int, torch.Tensor]], *, is_sender: bool, stream: torch.cuda.Stream | None
    ) -> None:
        """Sends bytes to other ranks, or receives some; on GPUs they have been when the stream is so far.

        Args:
            memory: For each of them its number and [nbytes] uint8, on the group's device.
            is_sender: Whether this rank sends.
            stream: Where NCCL works; None on the CPU.

        Raises:
            TransferError: A rank died or took too long.
        """
        if stream is not None:
            with torch.cuda.device(self.device):
                self._nccl.group_start()
                for rank, part in memory:
                    (self._nccl.send if is_sender else self._nccl.recv)(part, rank, stream)
                self._nccl.group_end()
            return
        verb = "send" if is_sender else "recv"
        self._do(lambda group: [getattr(group, verb)([part], rank, 0) for rank, part in memory])

    def note(self, event: torch.cuda.Event) -> None:
        """Has `wait` wait for an event, too."""
        self._started.append(event)

    def close(self) -> None:
        """Leaves the group."""
        nccl, self._nccl = self._nccl, None
        if nccl is not None:
            self._started.clear()
            nccl.destroy()
        self.agreed = None
        self._group = None  # its end closes the connections; its `shutdown` leaves them open
