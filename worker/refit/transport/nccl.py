"""Broadcasts from one GPU to others through vLLM's own communicator for weight transfers; imports vLLM."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import torch

from worker.errors import TransferError

#: Seconds between two looks at the device.
_LOOK_S = 50e-6


class Communicator:
    """NCCL between a trainer's GPUs and an engine's; broadcasts run one after the other on the device's current stream."""

    def __init__(self, ip: str, port: int, *, rank: int, world_size: int, device: torch.device) -> None:
        """Joins the group; returns once every rank has joined.

        Args:
            ip: Address of rank 0, which waits there.
            port: A free port there.
            rank: This process.
            world_size: All ranks.
            device: This process' GPU.
        """
        from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

        self._device = device
        with torch.cuda.device(device):
            self._group = stateless_init_process_group(ip, port, rank, world_size, device)
        self._started: deque[torch.cuda.Event] = deque()

    def broadcast(self, memory: torch.Tensor, source: int) -> None:
        """Starts a broadcast; `wait` returns when it is over.

        Args:
            memory: [nbytes] uint8 on the device; read on the source, overwritten elsewhere.
            source: The rank that sends.
        """
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            self._group.broadcast(memory, source, stream)
            self._started.append(stream.record_event())

    def wait(self, timeout_s: float, given_up: Callable[[], bool]) -> None:
        """Waits for all broadcasts that were started; leaves the communicator if that fails, which ends them on the device.

        Args:
            timeout_s: Seconds that each may take.
            given_up: Called while it waits; True ends the wait.

        Raises:
            TransferError: One took too long, or the wait was given up.
        """
        while self._started:
            event = self._started.popleft()
            end = time.monotonic() + timeout_s
            while not event.query():
                if given_up() or time.monotonic() > end:
                    self.close()
                    raise TransferError(
                        f"refit: a broadcast by NCCL did not end within refit.timeout_s = {timeout_s:g} s, "
                        "or the other side failed; a rank died or took too long"
                    )
                time.sleep(_LOOK_S)

    def close(self) -> None:
        """Leaves the communicator."""
        self._started.clear()
        self._group.destroy()
