"""Refit over a process group of trainer and engine ranks: NCCL on GPUs, gloo on the CPU.

Rank 0 is the trainer's sender. It broadcasts tensors from where they lie, or puts small ones together
(`worker.refit.weights.packing`);
an engine receives them in the memory of its parameters where they belong there as they are. On either device a gloo group
carries what must be agreed on first: what is sent, and every engine rank's vote on it, so that none enters a broadcast alone.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from quirks_core.base.errors import words
from worker.errors import RefitRejectedError, TransferError
from worker.refit.transport.channel import free_port
from worker.refit.weights.buffers import view
from worker.refit.weights.manifest import Chunk, Manifest, TensorSpec, in_order, size_of
from worker.refit.weights.packing import Packing
from worker.refit.weights.resident import InPlace
from worker.refit.weights.source import Source
from worker.refit.weights.sparse import ANY, DENSE, Changed, Item, Sent, can_be_compared, in_turn

#: Rank that sends.
SOURCE = 0
#: Seconds between two looks at the device.
_LOOK_S = 50e-6
#: Returns where a broadcast belongs as it is, as [nbytes] uint8; None if nowhere.
RoomFor: TypeAlias = Callable[[Chunk], torch.Tensor | None]


class Group:
    """A gloo group of its own, beside whatever process group the trainer has, and NCCL if the ranks are on GPUs.

    Attributes:
        rank: This process.
        world_size: Trainer ranks and engine ranks.
        device: Where weights are broadcast from and to.
        packing: What was announced last.
        upcoming: What the trainer calls the values that it sends, for the next refit to compare with; None if none is to.
        base: What it calls those that it compares with; None if it has none.
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
            self._group: Any = dist.ProcessGroupGloo(dist.PrefixStore("model-quirks", store), rank, world_size, limit)
        except (RuntimeError, ValueError) as error:
            raise TransferError(
                f"refit: rank {rank} of {world_size} could not join the group at {ip}:{port} within {timeout_s:g} s: "
                f"{words(error)}; the trainer's ranks and every engine rank must join at the same time"
            ) from error
        self.rank, self.world_size, self.device = rank, world_size, torch.empty(0, device=device).device  # with its number
        self.packing: Packing | None = None
        self.upcoming: str | None = None
        self.base: str | None = None
        self._timeout_s = timeout_s
        self._nccl: Any = None
        self._started: deque[torch.cuda.Event] = deque()
        place = self.broadcast_json([self.device.type, free_port(ip)] if rank == SOURCE else None)
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

    def announce(self, packing: Packing | None = None, sent: Sent | None = None) -> Packing:
        """Sends the others the packing, or receives it; the packing of the last refit is sent by reference.

        Args:
            packing: What is sent, on rank 0.
            sent: What it is compared with there, if it is.
        """
        message: dict[str, Any] | None = None
        if packing is not None:
            message = {"again": True} if packing is self.packing else packing.encode()
            message |= {"upcoming": sent.upcoming, "base": sent.name} if sent is not None else {}
        message = self.broadcast_json(message)
        self.upcoming, self.base = message.get("upcoming"), message.get("base")
        if packing is None:
            packing = self.packing if "again" in message else Packing.decode(message)
        if packing is None:
            raise TransferError("refit: the trainer reuses a packing that this process has not received")
        self.packing = packing
        return packing

    def broadcast_weights(self, memory: torch.Tensor) -> None:
        """Starts to broadcast rank 0's bytes; `wait` returns when they have arrived.

        Args:
            memory: [nbytes] uint8, on the group's device; read on rank 0, overwritten elsewhere.

        Raises:
            TransferError: A rank died or took too long.
        """
        if self._nccl is None:
            self._broadcast(memory)
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

    def broadcast_json(self, value: Any = None) -> Any:
        """Gives every rank the JSON value of rank 0."""
        payload = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        size = torch.tensor([len(payload)])
        self._broadcast(size)
        if self.rank != SOURCE:
            payload = torch.empty(int(size), dtype=torch.uint8)
        self._broadcast(payload)
        return json.loads(bytes(payload.numpy()))

    def agree(self, accepted: bool) -> bool:
        """Returns whether every rank accepts."""
        return bool(self.least([int(accepted)])[0])

    def least(self, votes: Sequence[int]) -> list[int]:
        """Returns the least of all ranks' votes on each of several things."""
        vote = torch.tensor(votes)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        self._do("a vote", lambda group: group.allreduce([vote], options))
        return vote.tolist()  # type: ignore[no-any-return]

    def broadcast_changed(self, changed: Changed | None = None) -> Changed | None:
        """Gives every rank the changed words of rank 0; None if all are to come.

        Args:
            changed: The words, on rank 0.
        """
        count = self.broadcast_json(None if changed is None else len(changed.places))
        if count is None:
            return None
        if self.rank != SOURCE:
            places, words = (torch.empty(count, dtype=dtype, device=self.device) for dtype in (torch.int32, torch.int64))
            changed = Changed(places, words)
        if count:
            for tensor in changed or ():
                self.broadcast_weights(tensor.view(torch.uint8))
        return changed

    def close(self) -> None:
        """Leaves the group."""
        nccl, self._nccl = self._nccl, None
        if nccl is not None:
            self._started.clear()
            nccl.destroy()
        self._group = None  # its end closes the connections; its `shutdown` leaves them open

    def _broadcast(self, tensor: torch.Tensor) -> None:
        self._do("a broadcast", lambda group: group.broadcast(tensor, SOURCE))

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
        sparse: bool = False,
    ) -> None:
        """Joins the engine's ranks, while the worker's ``init_collective_async`` runs with the same address.

        Args:
            ip: Address of trainer rank 0.
            port: A free port there.
            world_size: Trainer ranks that join and engine ranks.
            rank: This trainer rank.
            device: Where the engine's ranks run: a GPU of this process for NCCL, the CPU for gloo.
            timeout_s: Seconds to wait for the others at each step.
            sparse: Send only what changed since the last refit, where that is little; rank 0 keeps what it sent, which takes
                as much memory on the device as the engine's weights.

        Raises:
            TransferError: Not all came.
        """
        self._group = Group(ip, port, rank=rank, world_size=world_size, timeout_s=timeout_s, device=device)
        self._sent = Sent() if sparse and rank == SOURCE else None

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
                refit.tensors(model, scope)``, or a `worker.refit.weights.source.Source`, which brings its manifest with it,
                and whose tensors are sent from where they lie.
            manifest: What will be sent; found out by a pass over the tensors if None.
            buffer_bytes: Size above which tensors are not put together.
            given_up: Called while it waits for GPUs; True ends the wait.

        Raises:
            RefitRejectedError: An engine rank does not accept the manifest; nothing was sent.
            TransferError: A rank died or took too long; this and any other error half-way ends the group for all ranks.
        """
        try:
            packing, in_place = self._packing(tensors, manifest, buffer_bytes)
        except BaseException:
            self.close()  # the others wait for an announcement
            raise
        if self._sent is not None:
            self._sent.begin(packing)
        packing = self._group.announce(packing if self._group.rank == SOURCE else None, self._sent)
        if not self._group.agree(True):
            raise RefitRejectedError("refit rejected by the engine, nothing was sent; the worker's error says why")
        try:
            memories = self._memory(tensors, packing, in_place)
            if self._group.upcoming is None:
                for memory in memories:
                    self._group.broadcast_weights(memory)
            else:
                self._send_changed(packing, memories, given_up)
            self._group.wait(given_up)
            self._group.agree(True)
        except BaseException:
            self.close()  # so that no rank waits for this one
            raise

    def close(self) -> None:
        """Leaves the group."""
        self._group.close()

    def _send_changed(self, packing: Packing, memories: Iterable[torch.Tensor], given_up: Callable[[], bool]) -> None:
        """Sends what changed, as far as every engine rank can take it and has what it is compared with."""
        group, sent = self._group, self._sent
        kinds = group.least([ANY if can_be_compared(chunk) else DENSE for chunk in packing.chunks()])
        kinds = [DENSE if kind == ANY else kind for kind in kinds]
        is_sparse = group.base is not None and group.agree(sent is None or sent.holds(kinds))
        for broadcasts in in_turn(packing, kinds, memories):
            if broadcasts[0][0].kind != DENSE:
                group.wait(given_up)  # to compare waits for the device without a limit
                if is_sparse and group.broadcast_changed(sent.changed(broadcasts) if sent is not None else None) is not None:
                    continue
                if sent is not None and not is_sparse:
                    sent.keep(broadcasts)
            for _, memory in broadcasts:
                group.broadcast_weights(memory)
        if sent is not None:
            sent.end(kinds)

    def _packing(
        self, tensors: Callable[[], Iterable[tuple[str, torch.Tensor]]], manifest: Manifest | None, buffer_bytes: int
    ) -> tuple[Packing, InPlace | None]:
        """Returns what is sent together, the same object as long as nothing changes, and what is sent from where it lies."""
        in_place = None
        if isinstance(tensors, Source):
            manifest, in_place = tensors.manifest, tensors.in_place(self._group.device)
        manifest = manifest or Manifest.of(tensors())
        packing = self._group.packing
        if packing is None or packing.manifest is not manifest or packing.buffer_bytes != buffer_bytes:
            made = Packing.of(manifest, buffer_bytes, in_place.places if in_place is not None else {})
            return made if made != packing else packing, in_place
        return packing, in_place

    def _memory(
        self, tensors: Callable[[], Iterable[tuple[str, torch.Tensor]]], packing: Packing, in_place: InPlace | None
    ) -> Iterator[torch.Tensor]:
        """Yields what is broadcast: the tensors' own memory where they lie in it as they are sent, else a buffer."""
        known = in_place.places if in_place is not None else {}
        others = (tensor for name, tensor in in_order(tensors(), packing.manifest) if name not in known)
        for chunk in packing.chunks():
            memory = in_place.memory(chunk) if in_place is not None else None
            if memory is None:
                # On all of the trainer's ranks, for tensors may have to be gathered.
                parts = [self._part(spec, in_place, others) for spec, _ in chunk]
                memory = parts[0]
                if len(parts) > 1:
                    memory = torch.zeros(size_of(chunk), dtype=torch.uint8, device=self._group.device)  # between them, too
                    for (spec, offset), part in zip(chunk, parts, strict=True):
                        memory[offset : offset + spec.nbytes].copy_(part)
            yield memory if self._group.rank == SOURCE else torch.empty_like(memory)

    def _part(self, spec: TensorSpec, in_place: InPlace | None, others: Iterator[torch.Tensor]) -> torch.Tensor:
        memory = in_place.memory([(spec, 0)]) if in_place is not None else None
        return next(others).to(self._group.device).reshape(-1).view(torch.uint8) if memory is None else memory


class CollectiveStream:
    """An engine rank's end of `CollectiveSender.send`: waits for the manifest, votes, and yields what comes.

    Attributes:
        manifest: What the trainer will send; every rank has accepted it.
        packing: What one broadcast after the other holds.
        upcoming: What the trainer calls these values, if it will compare the next ones with them.
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
        self.packing = group.announce()
        self.manifest, self.upcoming = self.packing.manifest, group.upcoming
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

    def borrowed(
        self, room_for: RoomFor = lambda _: None, placed: bool = True, patch: Any = None
    ) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Yields the same, broadcast by broadcast; nothing, but once an empty list, for changed words.

        Args:
            room_for: Returns where a broadcast belongs as it is; it is received there. The first never is: by it the trainer
                shows that it sends at all.
            placed: Yield those, too, that were received in their place, and let no words come alone.
            patch: Takes changed words, if this rank can: a `worker.refit.engine.patch.Patch`.
        """
        has_begun = False
        for items, changed in self._received(patch, placed):
            if changed is not None:
                has_begun = True
                yield []
                self._group.wait()
                patch.apply(items, changed)
                continue
            for _, _, chunk in items:
                room = room_for(chunk) if has_begun else None
                memory = torch.empty(size_of(chunk), dtype=torch.uint8, device=self._group.device) if room is None else room
                self._group.broadcast_weights(memory)
                if not has_begun:
                    self._group.wait()
                has_begun = True
                if room is None or placed:
                    yield [(spec.name, view(memory, spec, offset)) for spec, offset in chunk]
        self._group.wait()
        self._group.agree(True)
        self.complete = True

    def _received(self, patch: Any, placed: bool) -> Iterator[tuple[list[Item], Changed | None]]:
        """Yields what comes next, as changed words if that is how it came."""
        group = self._group
        kinds = [DENSE] * len(self.packing.offsets)
        is_sparse = False
        if group.upcoming is not None:
            kinds = [DENSE if kind == ANY else kind for kind in group.least(kinds if patch is None else patch.votes)]
            is_sparse = group.base is not None and group.agree(patch is not None and not placed and patch.holds(group.base))
        for broadcasts in in_turn(self.packing, kinds, kinds):
            items = [item for item, _ in broadcasts]
            yield items, group.broadcast_changed() if is_sparse and items[0].kind != DENSE else None

    def __enter__(self) -> CollectiveStream:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Leaves the group if there was an error, so that no rank waits for this one; else the group stays."""
        if error is not None:
            self._group.close()
