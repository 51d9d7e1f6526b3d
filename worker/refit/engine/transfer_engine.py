"""The engine's side of a refit: takes what a transport brings through vLLM's layerwise reload into the running model.

Imports vLLM to derive from its weight-transfer engine, and torch; only vLLM's factory imports it
(`worker.refit.engine.transfer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.utils import process_weights_after_loading

from quirks_core.base import private_folder
from quirks_core.base.errors import QuirksError, words
from worker.errors import RefitError, RefitRejectedError, TransferError
from worker.refit.advice import with_counts
from worker.refit.engine import verify
from worker.refit.engine.finite import NotFinite
from worker.refit.engine.reload import Batch, Reload, lacking
from worker.refit.transport.channel import socket_path
from worker.refit.transport.collective import CollectiveStream
from worker.refit.transport.group import Group
from worker.refit.transport.ipc_zmq import IpcZmqStream
from worker.refit.weights import checkpoint
from worker.refit.weights.copy_plan import CopyPlan, SeeAll, Tensors, passing
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.pool import Opened

#: What a transport brings.
Stream: TypeAlias = IpcZmqStream | CollectiveStream


@dataclass
class RefitInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Address of the collective; the other transports need none.

    Attributes:
        ip: Address of trainer rank 0.
        port: Its port.
        rank_offset: Rank of this engine's first process.
        world_size: Trainer ranks and engine ranks.
        timeout_s: Seconds to wait for the others, at each step.
    """

    ip: str
    port: int
    rank_offset: int
    world_size: int
    timeout_s: float


@dataclass
class RefitUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One refit.

    Attributes:
        transport: ``ipc_zmq`` or ``collective``.
        location: The folder of the processes' sockets; empty for a collective.
        manifest: What the trainer announced, as `Manifest.encode` gives it; None if nothing was.
        dummy: The engine started from dummy weights, so what a first refit leaves out is garbage.
        timeout_s: Seconds to wait for the trainer, at each step.
        verify_every: After how many refits that copied the copies are compared with the model's loaders; 0 for the first alone.
        keep_memory: Keep the trainer's memory open after the refit, so that the next one need not open it.
        finite: Refuse weights that are NaN or infinite.
        ranks: Processes that the trainer sends to; 0 if it does not send it.
    """

    transport: str
    location: str = ""
    manifest: list[Any] | None = None
    dummy: bool = False
    timeout_s: float = 120.0
    verify_every: int = 0
    keep_memory: bool = False
    finite: bool = True
    ranks: int = 0


class RefitEngine(WeightTransferEngine[RefitInitInfo, RefitUpdateInfo]):  # type: ignore[misc]
    """Loads complete sets of weights in checkpoint names, from any of our transports.

    The reload re-runs each layer's processing (packing, quantisation) on the new weights and copies the result into the
    tensors that the engine already runs on, so captured CUDA graphs stay valid. A manifest that is not as
    announced is found out before the model is touched.

    Attributes:
        touched: Whether the last refit changed the model; if it failed as well, old and new weights stand side by side.
        ways: What the last refit did, as `worker.refit.refitting.RefitReport` takes it from each process.
        see: Gets what is copied and the model's bytes do not show, if set.
        copied: What the last refit copied; None if it loaded all.
    """

    init_info_cls = RefitInitInfo
    update_info_cls = RefitUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._group: Group | None = None
        self._plan: CopyPlan | None = None
        self._resident: Opened | None = None
        self._announced: tuple[list[Any] | None, Manifest | None] = None, None
        self._slots: set[str] = set()
        self._complete_once = False
        self._not_finite = NotFinite()
        self.touched = False
        self.ways: dict[str, Any] = {}
        self.see: SeeAll | None = None
        self.copied: CopyPlan | None = None

    @property
    def rank(self) -> int:
        """This process among all of one engine, its own data-parallel ranks included."""
        parallel = self.parallel_config
        outer = 0 if self._is_alone else parallel.data_parallel_index
        return int(outer * parallel.world_size + parallel.rank)

    @property
    def ranks(self) -> int:
        """How many processes there are."""
        parallel = self.parallel_config
        return int(parallel.world_size * (1 if self._is_alone else parallel.data_parallel_size))

    @property
    def _is_alone(self) -> bool:
        """Whether each data-parallel rank is an engine of its own for its callers."""
        return bool(getattr(self.parallel_config, "data_parallel_external_lb", False))

    def init_transfer_engine(self, init_info: RefitInitInfo) -> None:
        """Joins the collective; a group that was there before is left."""
        self.shutdown()
        self._group = Group(
            init_info.ip,
            init_info.port,
            rank=init_info.rank_offset + self.rank,
            world_size=init_info.world_size,
            timeout_s=init_info.timeout_s,
            device=self.device,
        )

    def start_weight_update(self) -> None:
        """Does nothing yet: the layers are made ready once the manifest is accepted."""
        self._not_finite = NotFinite(self.model_config.dtype)
        self.touched = False
        self.ways = {}
        self.copied = None

    def receive_weights(self, update_info: RefitUpdateInfo) -> None:
        """Takes one refit.

        Raises:
            RefitRejectedError: The manifest is not as announced, or the trainer sends to another number of
                processes; the model is as it was.
            TransferError: The trainer died or took too long.
            RefitUnsupportedError: vLLM cannot reload this model; it is as it was.
            RefitError: Parameters that never got a value but a dummy's were left out, weights are not finite, or they could
                not be put in force.
        """
        wrong: RefitRejectedError | None = None
        if update_info.ranks not in (0, self.ranks):
            wrong = RefitRejectedError(
                f"refit rejected, nothing was loaded: the trainer sends to {update_info.ranks} of the engine's processes "
                f"(ranks), and it has {self.ranks}: tensor-, pipeline- and data-parallel ranks together"
            )
            if self.rank >= update_info.ranks:  # the trainer does not send to this one
                raise wrong
        if self._plan is not None:
            self._plan.check_every, self._plan.see, self._plan.look = update_info.verify_every, self.see, self._look_at
        with self._stream(update_info, self._copying) as stream:
            if wrong is not None:
                raise wrong  # in the stream, so that the trainer gets the reason
            update = self._load(stream, update_info)
        self._keep(stream, update_info)
        self._put_in_force(update, stream.manifest)
        self._not_finite.after_casts(self.model)
        self.ways["not_finite"] = dict(self._not_finite)
        self._check_finite(update_info)

    def finish_weight_update(self) -> None:
        """Does nothing any more: vLLM would take no further refit after an error here."""

    def _put_in_force(self, update: Reload, manifest: Manifest) -> None:
        try:
            update.close()
            if update.slots:
                update.check(self._slots)
            self._plan = update.recorded(manifest, prepares=True) or self._plan
            self._complete_once = True
        except QuirksError:
            raise
        except Exception as error:
            raise RefitError(f"refit: the new weights could not be put in force: {words(error)}") from error

    def verify(self, update_info: RefitUpdateInfo) -> dict[str, str]:
        """Receives the same weights once more, and compares the running model with what its loaders make of them.

        Where they do nothing but copy, they compare instead. What is packed, quantised or computed after loading shows only in
        a second model.

        Returns:
            For every tensor that differs, what is different about it.
        """
        with self._stream(update_info) as stream:
            plan = self._copying(stream.manifest)
            if plan is not None and not (plan.reloaded or plan.unloaded or plan.prepared.sources):
                differing = {name for tensors in stream.borrowed() for name in plan.differing(self.model, tensors)}
                found = dict.fromkeys(sorted(differing), "has other values than its loader would write")
            else:
                fresh = verify.fresh_model(self.vllm_config, self.device)
                buffers = stream.borrowed()
                fresh.load_weights((name, one if stream.lasts else one.clone()) for some in buffers for name, one in some)
                _check_end(stream)
                process_weights_after_loading(fresh, self.model_config, self.device)
                found = verify.differences(self.model, fresh, self.model_config.dtype)
        self._keep(stream, update_info)
        return found

    def forget(self, *, plan: bool) -> None:
        """Closes the trainer's memory, which the trainer may want to free; the next refit opens it again.

        Args:
            plan: The model's memory is about to lose its content, so forget as well what can be copied: a plan relies on
                constants that the recorded refit wrote.
        """
        self._resident = None
        if plan:
            self._plan = None

    def shutdown(self) -> None:
        """Leaves the collective, if one was joined."""
        if self._group is not None:
            self._group.close()
        self._group = None

    @staticmethod
    def trainer_send_weights(iterator: Iterator[tuple[str, torch.Tensor]], trainer_args: Any) -> None:
        """Abstract in vLLM 0.26, gone later; our trainers send through `worker.refit`."""
        raise NotImplementedError("send with worker.refit: send_ipc_zmq, or CollectiveSender")

    def _copying(self, manifest: Manifest) -> CopyPlan | None:
        """Returns the plan by which a refit is copied; None if it is loaded."""
        plan = self._plan
        return plan if plan is not None and plan.copied and plan.fits(manifest, self.model) else None

    def _stream(self, info: RefitUpdateInfo, plan: Callable[[Manifest], CopyPlan | None] = lambda _: None) -> Stream:
        if info.manifest != self._announced[0]:
            self._announced = info.manifest, Manifest.decode(info.manifest) if info.manifest is not None else None
        expected = self._announced[1] or self._checkpoint
        if info.transport == "ipc_zmq":
            folder = Path(info.location)
            if not private_folder.is_ours(folder):
                raise RefitRejectedError(
                    f"refit rejected, nothing was loaded: the location {info.location!r} is no folder for this user's sockets: "
                    "make it with quirks_core.base.private_folder.make"
                )
            path, limit = socket_path(folder, self.rank), info.timeout_s
            return IpcZmqStream(path, expected, device=self.device, timeout_s=limit, known=self._resident, plan=plan)
        if info.transport == "collective":
            if self._group is None:
                raise TransferError("refit by collective: no group; call init_collective_async first")
            return CollectiveStream(self._group, expected, plan)
        raise TransferError(f"refit: no transport {info.transport!r}; there are ipc_zmq and collective")

    @cached_property
    def _checkpoint(self) -> Manifest | None:
        """What the checkpoint holds; None if the engine is quantised, and its layers have tensors of other kinds."""
        return None if self.model_config.quantization else checkpoint.held(Path(self.model_config.model))

    def _keep(self, stream: Stream, info: RefitUpdateInfo) -> None:
        if isinstance(stream, IpcZmqStream):
            self._resident = stream.memory if info.keep_memory else None

    def _load(self, stream: Stream, info: RefitUpdateInfo) -> Reload:
        """Copies what a plan copies, and has the loaders take the rest; what this returns is to be closed.

        Without a plan that is everything, recorded so that some can be copied from the next refit on.
        """
        plan, known = stream.plan, self._plan
        if plan is None and known is not None and not known.fits(stream.manifest, self.model):
            known = None  # else nothing can be copied, as was found out
        self._plan = None  # unless all goes well
        ways: dict[str, Any] = {
            "copied": 0 if plan is None else len(plan.copied),
            "reloaded": len(stream.manifest.tensors if plan is None else plan.reloaded),
            "layers": [] if plan is None else sorted(plan.modules),
            "unloaded": [] if plan is None else list(plan.unloaded),
            "by_pieces": stream.by_pieces,
            "bytes": stream.manifest.nbytes,
        }
        layers = None if plan is None else plan.modules.__contains__
        is_recorded, lasts = known is None, stream.lasts
        update = Reload(self.model, self.model_config, layers, plan=plan, is_recorded=is_recorded, lasts=lasts)
        try:
            self._fill(update, self._coming(stream, plan, ways))
            if plan is not None:
                # Not before all is there: some of it may have been received in its place.
                self._look_at(plan.destinations.items(), plan.written())
            _check_end(stream)
            self._check_finite(info)
            if plan is None:
                ways["unloaded"] = update.unloaded()
            if info.dummy and not self._complete_once and (unloaded := ways["unloaded"]):
                raise RefitError(
                    "refit: the engine started from dummy weights, and the trainer sends nothing for "
                    f"{', '.join(unloaded[:8])} ({len(unloaded)} in all); send them, or set engine.load_format=auto"
                )
            if update.slots and (halves := list(islice(lacking(self.model), 8))):
                raise RefitError(f"refit: of layers that the engine fuses the trainer sends only parts: {'; '.join(halves)}")
        except BaseException:
            # vLLM forgets the session but leaves half-filled layers behind, which the next refit would add to.
            update.abandon()
            raise
        finally:
            self.touched = update.touched
            self._slots |= set(update.slots)  # of all refits: what an earlier one removed is still missing
        self._plan, self.ways = known, ways
        return update

    def _coming(self, stream: Stream, plan: CopyPlan | None, ways: dict[str, Any]) -> Iterator[Batch]:
        for tensors in stream.borrowed():
            if plan is None:
                yield (), tensors
            else:
                self.copied, self.ways = plan, ways
                yield tensors, ()

    def _fill(self, update: Reload, coming: Iterator[Batch]) -> None:
        try:
            update.load(lambda tensors: self.model.load_weights(passing(tensors, self._not_finite.see)), coming)
        except QuirksError:
            raise
        except Exception as error:
            what = f"the engine's model does not take {update.last}" if update.sent or not update.plan else "copying failed"
            raise RefitError(f"refit: {what}: {words(error)}") from error

    def _check_finite(self, info: RefitUpdateInfo) -> None:
        if info.finite and self._not_finite:
            dtype = str(self.model_config.dtype).removeprefix("torch.")
            lost = f" (a cast to the engine's {dtype} does not hold all)" if self._not_finite.beyond else ""
            raise RefitError(
                f"refit: the trainer's weights are not finite, {with_counts(self._not_finite)}{lost}; correct the trainer's "
                "model, or set refit.finite: false to take them"
            )

    def _look_at(self, held: Tensors, came: Tensors) -> None:
        """Looks at the tensors that were copied to; at the copies, which can be thousands, if one of those is not finite."""
        found = NotFinite(self.model_config.dtype)
        found.look(held)
        if found or found.beyond:
            self._not_finite.look(came)


def _check_end(stream: Stream) -> None:
    if not stream.complete:
        raise RefitError("refit: the model stopped loading before the last tensor")
