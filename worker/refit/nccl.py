"""vLLM's own ``nccl`` weight-transfer backend, behind what 0.26 and 0.32 have in common.

Imports vLLM for that backend. Between the two the size of the packed buffers moved from the message that announces an update
to the one that opens the group, so it is passed to whichever of them has a field for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import torch

from worker.refit.manifest import Manifest

#: Packed buffers in turn: one is broadcast while the other is filled or loaded.
_BUFFERS = 2


class Sender:
    """The trainer's end of vLLM's packed broadcast."""

    def __init__(self, ip: str, port: int, *, rank: int, world_size: int, device: torch.device) -> None:
        """Opens the communicator; returns once every rank has come."""
        from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

        self._device = device
        with torch.cuda.device(device):
            self._group = stateless_init_process_group(ip, port, rank, world_size, device)

    def send(self, tensors: Iterator[tuple[str, torch.Tensor]], buffer_bytes: int) -> None:
        """Broadcasts tensors in packed buffers; returns when they have left.

        Args:
            tensors: Names and tensors, in the order of the manifest; any device.
            buffer_bytes: Size of a packed buffer.
        """
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        with torch.cuda.device(self._device):
            packed_nccl_broadcast_producer(
                iterator=tensors,
                group=self._group,
                src=0,
                post_iter_func=lambda item: item[1].to(self._device, non_blocking=True),
                buffer_size_bytes=buffer_bytes,
                num_buffers=_BUFFERS,
            )

    def close(self) -> None:
        """Leaves the communicator."""
        if hasattr(self._group, "destroy"):
            self._group.destroy()


class Receiver:
    """An engine rank's end: vLLM's ``NCCLWeightTransferEngine``, which loads through our model."""

    def __init__(self, arguments: Iterable[Any], *, ip: str, port: int, rank_offset: int, world_size: int) -> None:
        """Opens the communicator.

        Args:
            arguments: What vLLM gave to our own engine when it made it.
            ip: Address of trainer rank 0.
            port: The communicator's port there.
            rank_offset: Rank of this engine's first process.
            world_size: All ranks.
        """
        from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

        self._engine = NCCLWeightTransferEngine(*arguments)
        init = {
            "master_address": ip,
            "master_port": port,
            "rank_offset": rank_offset,
            "world_size": world_size,
            "packed": True,
            "packed_num_buffers": _BUFFERS,
        }
        self._engine.init_transfer_engine(_made(self._engine.init_info_cls, init))

    def receive(self, model: Any, manifest: Manifest, buffer_bytes: int) -> None:
        """Receives one refit.

        Args:
            model: Its ``load_weights`` takes names and tensors, buffer by buffer.
            manifest: What comes, in order.
            buffer_bytes: Size of a packed buffer.
        """
        self._engine.model = model
        self._engine.packed_buffer_size_bytes = buffer_bytes  # where 0.32 keeps it
        update = {
            "names": [spec.name for spec in manifest.tensors],
            "dtype_names": [spec.dtype for spec in manifest.tensors],
            "shapes": [list(spec.shape) for spec in manifest.tensors],
            "packed": True,
            "packed_buffer_size_bytes": buffer_bytes,
            "packed_num_buffers": _BUFFERS,
        }
        self._engine.receive_weights(_made(self._engine.update_info_cls, update))
        torch.accelerator.synchronize()

    def close(self) -> None:
        """Leaves the communicator."""
        self._engine.shutdown()


def _made(kind: type[Any], values: dict[str, Any]) -> Any:
    """Makes a dataclass from those of the values that it has fields for."""
    known = {item.name for item in fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in known})
