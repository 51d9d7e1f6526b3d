"""The trainer's half of the backend ``model_quirks``, behind vLLM's interface for trainers (vLLM 0.28 and later).

A trainer that drives vLLM's `TrainerWeightTransferEngine` changes its init info and nothing else. It needs neither our worker
nor a plan; vLLM's own clients carry the four calls to the engine. Imports vLLM to derive from its interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)

from quirks_core.base import private_folder
from quirks_core.base.errors import words
from worker.errors import RefitRejectedError, TransferError
from worker.refit.engine.transfer import BACKEND
from worker.refit.transport import ipc_zmq
from worker.refit.transport.channel import socket_path
from worker.refit.transport.collective import CollectiveSender
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.source import Source

TRANSPORTS = ("ipc_zmq", "collective")

#: Called for each pass over names and tensors.
_Tensors = Callable[[], Iterable[tuple[str, torch.Tensor]]]


@dataclass
class RefitTrainerInitInfo(TrainerInitInfo):  # type: ignore[misc]
    """How a trainer sends, and to how many processes.

    Attributes:
        rank: This trainer rank; rank 0 sends, and every rank calls `RefitTrainer.send_weights`.
        transport: ``ipc_zmq`` for an engine on this machine, ``collective`` for any placement (NCCL, or gloo on the CPU).
        engine_ranks: Processes of the engine: tensor-, pipeline- and data-parallel ranks together.
        trainer_ranks: Trainer ranks that hold parts of one model.
        device: Where the engine computes: the GPU that both share for ``ipc_zmq``, a GPU of this process for
            ``collective``, or the CPU.
        ip: Address of trainer rank 0, for ``collective``.
        port: A free port there, for ``collective``.
        buffer_bytes: Size of a buffer for tensors that are not read where they lie.
        timeout_s: Seconds to wait for the other side at each step.
        dummy: The engine started with ``load_format=dummy``: a first update that leaves a tensor out is refused.
        finite: Refuse weights that are NaN or infinite.
    """

    backend: ClassVar[str] = BACKEND

    transport: str = "ipc_zmq"
    engine_ranks: int = 1
    trainer_ranks: int = 1
    device: str = "cpu"
    ip: str = "127.0.0.1"
    port: int = 0
    buffer_bytes: int = 1 << 29
    timeout_s: float = 120.0
    dummy: bool = False
    finite: bool = True

    def __post_init__(self) -> None:
        """Checks what cannot work.

        Raises:
            ValueError: With all reasons.
        """
        problems = []
        if self.transport not in TRANSPORTS:
            problems.append(f"transport is {self.transport!r}; there are {' and '.join(TRANSPORTS)}")
        if self.transport == "collective" and not self.port:
            problems.append("a collective needs port, a free port of trainer rank 0")
        if not 0 <= self.rank < self.trainer_ranks:
            problems.append(f"rank is {self.rank} of trainer_ranks {self.trainer_ranks}")
        if self.engine_ranks < 1:
            problems.append(f"engine_ranks is {self.engine_ranks}")
        if problems:
            raise ValueError(f"RefitTrainerInitInfo: {'; '.join(problems)}")


class RefitTrainer(TrainerWeightTransferEngine[RefitTrainerInitInfo]):  # type: ignore[misc]
    """Sends a model to an engine whose ``weight_transfer_config`` is ``{"backend": "model_quirks"}``."""

    init_info_cls = RefitTrainerInitInfo

    def __init__(self, info: RefitTrainerInitInfo, *, client: VLLMWeightSyncClient, source: Source | WeightSource) -> None:
        """Joins the engine; use `trainer_init`."""
        super().__init__(client=client, source=source, is_sender=info.is_sender)
        self._info = info
        self._collective: CollectiveSender | None = None
        self._folder: Path | None = None
        if info.transport == "collective":
            # Of a source of ours each rank sends what it holds; of others rank 0 sends what all have gathered.
            senders = info.trainer_ranks if isinstance(source, Source) else 1
            if info.rank < senders:
                self._collective = self._joined(info, senders)
        elif self.is_sender:
            self._folder = private_folder.make("model-quirks-refit-")

    def _joined(self, info: RefitTrainerInitInfo, senders: int) -> CollectiveSender:
        size, limit = senders + info.engine_ranks, info.timeout_s
        init_info = {"ip": info.ip, "port": info.port, "rank_offset": senders, "world_size": size, "timeout_s": limit}
        with ThreadPoolExecutor(max_workers=1) as pool:
            joining = pool.submit(self.client.init_weight_transfer_engine, init_info) if self.is_sender else None
            sender = CollectiveSender(info.ip, info.port, world_size=size, rank=info.rank, device=info.device, timeout_s=limit)
            if joining is not None:
                joining.result()
        return sender

    @classmethod
    def trainer_init(
        cls, init_info: RefitTrainerInitInfo, *, client: VLLMWeightSyncClient, source: Source | WeightSource | None = None
    ) -> Self:
        """Returns a trainer that is ready to send; every trainer rank calls it.

        Args:
            init_info: How to send.
            client: The four calls to the engine, such as vLLM's ``HTTPVLLMWeightSyncClient(url)``.
            source: What to send: a `worker.refit.Source`, which has the names of a checkpoint and may be read where it
                lies, or a source of vLLM.

        Raises:
            ValueError: There is no source.
            TransferError: Not all ranks of the collective came.
        """
        if source is None:
            raise ValueError('the backend "model_quirks" needs a source: worker.refit.Source(model, "state_dict")')
        return cls(init_info, client=client, source=source)

    def send_weights(self, weight_version: str | None = None) -> None:
        """Sends the source's tensors and puts them in force; every trainer rank calls it.

        Args:
            weight_version: How the engine is to call them from then on (vLLM 0.32 and later).

        Raises:
            RefitRejectedError: The engine does not take these tensors; its weights are as they were.
            TransferError: A process died or took too long.
            Exception: Whatever the client raises for an error of the engine.
        """
        tensors, manifest = self._tensors()
        if not self.is_sender:
            self._send(tensors, manifest, given_up=lambda: False)
            return
        info = self._info
        update_info = {
            "transport": info.transport,
            "location": "" if self._folder is None else str(self._folder),
            "dummy": info.dummy,
            "timeout_s": info.timeout_s,
            "finite": info.finite,
            "ranks": info.engine_ranks,
        }
        self.client.start_weight_update()
        with ThreadPoolExecutor(max_workers=1) as pool:
            update = pool.submit(self.client.update_weights, update_info)
            try:
                self._send(tensors, manifest, given_up=lambda: update.done() and update.exception() is not None)
            except (RefitRejectedError, TransferError) as error:
                if (failed := update.exception()) is None:
                    raise
                raise type(error)(f"{error}; the engine's call of update_weights failed: {words(failed)}") from failed
            update.result()
        self.client.finish_weight_update(*(() if weight_version is None else (weight_version,)))

    def shutdown(self) -> None:
        """Leaves the collective, or removes the folder of the sockets."""
        if self._collective is not None:
            self._collective.close()
        if self._folder is not None:
            private_folder.remove(self._folder)

    def _tensors(self) -> tuple[_Tensors, Manifest]:
        """Returns the source as the senders take it; every rank makes exactly one pass over tensors that it gathers."""
        source = self.source
        if not isinstance(source, Source):
            metadata = source.metadata() if callable(source.metadata) else source.metadata  # from 0.33 on a property
            pairs = getattr(source, "iter_full", source.__iter__)
            return lambda: _pairs(pairs()), Manifest.parse({one.name: (one.shape, one.dtype) for one in metadata})
        source = Source(source.model, source.scope)  # the model may have changed since the last refit
        if self._collective is None and self._info.trainer_ranks > 1:
            return partial(_pairs, source()), source.manifest
        return source, source.manifest

    def _send(self, tensors: _Tensors, manifest: Manifest, given_up: Callable[[], bool]) -> None:
        info = self._info
        if self._collective is not None:
            self._collective.send(tensors, manifest=manifest, buffer_bytes=info.buffer_bytes, given_up=given_up)
        elif self._folder is not None:
            ipc_zmq.send(
                tensors,
                [str(socket_path(self._folder, rank)) for rank in range(info.engine_ranks)],
                device=info.device,
                manifest=manifest,
                buffer_bytes=info.buffer_bytes,
                timeout_s=info.timeout_s,
                given_up=given_up,
            )
        else:
            for _ in tensors():  # a sharded tensor is gathered on all ranks together
                pass


def _pairs(source: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, tensor.detach()) for name, tensor in source)
