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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist

from quirks_core.base.errors import words
from quirks_core.base.text import listed
from worker.errors import RefitRejectedError, TransferError
from worker.refit.transport.channel import free_port
from worker.refit.transport.exchange import Exchange, agree_to_receive, agree_to_send
from worker.refit.weights.buffers import view
from worker.refit.weights.manifest import Chunk, Manifest, TensorSpec, in_order, size_of
from worker.refit.weights.packing import Packing
from worker.refit.weights.resident import InPlace
from worker.refit.weights.source import Source

if TYPE_CHECKING:
    from worker.refit.engine.copy_plan import CopyPlan

#: Rank that sends.
SOURCE = 0
#: A rank's vote: broadcasts, pieces, or the pieces of the last refit that had some; 0 refuses.
_BROADCAST, _BY_PIECES, _AS_BEFORE = 1, 2, 3
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
        self._exchange: tuple[object, Exchange | None] | None = None
        self._checked: tuple[Manifest, Manifest | None] | None = None
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

    def vote(self, subject: object | None) -> int:
        """Returns this rank's vote for the next refit, to be given to `agree`.

        Args:
            subject: What this rank would send or receive by pieces; None if it takes part in broadcasts alone.
        """
        if subject is None:
            return _BROADCAST
        return _AS_BEFORE if self._exchange is not None and self._exchange[0] is subject else _BY_PIECES

    def agreed(self, vote: int, subject: object, agree: Callable[[], Exchange | None]) -> Exchange | None:
        """Returns what is sent or received by pieces; None for broadcasts.

        Args:
            vote: The least vote of all ranks.
            subject: What this rank voted about.
            agree: Finds out with all ranks what is sent.
        """
        if vote == _BROADCAST:
            return None
        if vote == _BY_PIECES or self._exchange is None:
            self._exchange = subject, agree()
        return self._exchange[1]

    def check(self, manifest: Manifest, expected: Manifest | None) -> None:
        """Makes sure, as `Manifest.check`, that a refit may begin; what was checked last need not be again."""
        if self._checked is None or self._checked[0] is not manifest or self._checked[1] is not expected:
            manifest.check(expected)
            self._checked = manifest, expected

    def forget(self) -> None:
        """Has the next refit agree on pieces again."""
        self._exchange = None

    def announce(self, packing: Packing | None = None) -> Packing:
        """Sends the others the packing, or receives it; the packing of the last refit is sent by reference.

        Args:
            packing: What is sent, on rank 0.
        """
        message = None
        if packing is not None:
            message = {"again": True} if packing is self.packing else packing.encode()
        message = self.broadcast_json(message)
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
        return self._json_of(SOURCE, value)

    def gather_json(self, value: Any) -> list[Any]:
        """Gives every rank the JSON values of all, in their order."""
        return [self._json_of(rank, value) for rank in range(self.world_size)]

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
        self._do("a message", lambda group: _All([getattr(group, verb)([part], rank, 0) for rank, part in memory]))

    def note(self, event: torch.cuda.Event) -> None:
        """Has `wait` wait for an event, too."""
        self._started.append(event)

    def agree(self, accepted: int) -> int:
        """Returns the least that any rank votes for; 0 is no."""
        vote = torch.tensor([int(accepted)])
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        self._do("a vote", lambda group: group.allreduce([vote], options))
        return int(vote.item())

    def close(self) -> None:
        """Leaves the group."""
        nccl, self._nccl = self._nccl, None
        if nccl is not None:
            self._started.clear()
            nccl.destroy()
        self._exchange = None
        self._group = None  # its end closes the connections; its `shutdown` leaves them open

    def _json_of(self, rank: int, value: Any) -> Any:
        payload = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        size = torch.tensor([len(payload)])
        self._broadcast(size, rank)
        if self.rank != rank:
            payload = torch.empty(int(size), dtype=torch.uint8)
        self._broadcast(payload, rank)
        return json.loads(bytes(payload.numpy()))

    def _broadcast(self, tensor: torch.Tensor, rank: int = SOURCE) -> None:
        self._do("a broadcast", lambda group: group.broadcast(tensor, rank))

    def _do(self, what: str, start: Callable[[Any], Any]) -> None:
        if self._group is None:
            raise TransferError("refit: the collective was left after a failure; trainer and engine must open a new one")
        try:
            start(self._group).wait()
        except RuntimeError as error:
            raise TransferError(
                f"refit: {what} of the collective failed, a rank died or took too long: {words(error)}"
            ) from error


class _All(NamedTuple):
    """Works of a process group, as one."""

    works: list[Any]

    def wait(self) -> None:
        """Waits for all."""
        for work in self.works:
            work.wait()


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
        self._alike: tuple[int, int] | None = None

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
            manifest = tensors.manifest if isinstance(tensors, Source) else manifest or Manifest.of(tensors())
            packing, in_place = self._packing(tensors, manifest, buffer_bytes)
        except BaseException:
            self.close()  # the others wait for an announcement
            raise
        packing = self._group.announce(packing if self._group.rank == SOURCE else None)
        held = tensors.held(self._group.device, self._group.rank) if isinstance(tensors, Source) else None
        problem = ""
        if self._alike != (id(manifest), id(packing)):  # which takes milliseconds for thousands of tensors
            problem = _unlike(manifest, packing.manifest, self._group.rank)
        self._alike = (id(manifest), id(packing)) if not problem else None
        vote = self._group.agree(0 if problem else self._group.vote(held))
        if not vote:
            why = problem or "rejected by the engine, nothing was sent; the worker's error says why"
            raise RefitRejectedError(f"refit {why}")
        try:
            exchange = self._group.agreed(vote, held, lambda: agree_to_send(self._group, packing.manifest, held or {}))
            if exchange is not None:
                deque(exchange.run(), maxlen=0)
            else:
                for memory in self._memory(tensors, packing, in_place):
                    self._group.broadcast_weights(memory)
            self._group.wait(given_up)
            self._group.agree(True)
        except BaseException:
            self.close()  # so that no rank waits for this one
            raise

    def close(self) -> None:
        """Leaves the group."""
        self._group.close()

    def _packing(
        self, tensors: Callable[[], Iterable[tuple[str, torch.Tensor]]], manifest: Manifest, buffer_bytes: int
    ) -> tuple[Packing, InPlace | None]:
        """Returns what is sent together, the same object as long as nothing changes, and what is sent from where it lies."""
        in_place = tensors.in_place(self._group.device) if isinstance(tensors, Source) else None
        packing = self._group.packing
        if packing is None or packing.manifest is not manifest or packing.buffer_bytes != buffer_bytes:
            packing = Packing.of(manifest, buffer_bytes, in_place.places if in_place is not None else {})
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
                    memory = torch.empty(size_of(chunk), dtype=torch.uint8, device=self._group.device)
                    for (spec, offset), part in zip(chunk, parts, strict=True):
                        memory[offset : offset + spec.nbytes].copy_(part)
            yield memory if self._group.rank == SOURCE else torch.empty_like(memory)

    def _part(self, spec: TensorSpec, in_place: InPlace | None, others: Iterator[torch.Tensor]) -> torch.Tensor:
        memory = in_place.memory([(spec, 0)]) if in_place is not None else None
        return next(others).to(self._group.device).reshape(-1).view(torch.uint8) if memory is None else memory


def _unlike(own: Manifest, first: Manifest, rank: int) -> str:
    """Returns how what a trainer's rank would send differs from what rank 0 does; empty if it does not."""
    if own is first or own == first:
        return ""
    others = {spec.name: spec for spec in first.tensors}
    different = [spec.name for spec in own.tensors if others.pop(spec.name, None) != spec] + list(others)
    return f"rejected: the model of the trainer's rank {rank} is not rank 0's: {listed(different or ['the order of tensors'])}"


class CollectiveStream:
    """An engine rank's end of `CollectiveSender.send`: waits for the manifest, votes, and yields what comes.

    Attributes:
        manifest: What the trainer will send; every rank has accepted it.
        complete: Whether everything was yielded.
    """

    complete = False

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
            plan: Returns where the parts of the tensors of a manifest go; None if this rank needs them whole.

        Raises:
            RefitRejectedError: The manifest differs from what was announced, here or on another rank.
            TransferError: The trainer died or took too long.
        """
        self._group = group
        self._packing = group.announce()
        self.manifest = self._packing.manifest
        problem = None
        try:
            group.check(self.manifest, expected)
        except RefitRejectedError as error:
            problem = error
        found = plan(self.manifest) if problem is None else None
        vote = group.agree(group.vote(found) if problem is None else 0)
        if not vote:
            raise problem or RefitRejectedError("refit rejected by another rank; nothing was loaded")
        self._exchange = group.agreed(
            vote, found, lambda: agree_to_receive(group, self.manifest, found.wanted() if found is not None else [])
        )

    @property
    def by_pieces(self) -> bool:
        """Whether this rank receives the parts that it wants, where they go."""
        return self._exchange is not None

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields names and tensors, in memory of their own.

        Raises:
            TransferError: The trainer died or took too long.
        """
        for tensors in self.borrowed():
            yield from tensors

    def borrowed(self, room_for: RoomFor = lambda _: None, placed: bool = True) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Yields the same, broadcast by broadcast.

        Args:
            room_for: Returns where a broadcast belongs as it is; it is received there. The first never is: by it the trainer
                shows that it sends at all.
            placed: Yield those, too, that were received in their place; by pieces they never are.
        """
        if self._exchange is not None:
            yield from ([pair] for pair in self._exchange.run())
            self._end()
            return
        for number, chunk in enumerate(self._packing.chunks()):
            room = room_for(chunk) if number else None
            memory = torch.empty(size_of(chunk), dtype=torch.uint8, device=self._group.device) if room is None else room
            self._group.broadcast_weights(memory)
            if not number:
                self._group.wait()
            if room is None or placed:
                yield [(spec.name, view(memory, spec, offset)) for spec, offset in chunk]
        self._end()

    def _end(self) -> None:
        self._group.wait()
        self._group.agree(True)
        self.complete = True

    def __enter__(self) -> CollectiveStream:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Leaves the group if there was an error, so that no rank waits for this one; else the group stays."""
        if error is not None:
            self._group.close()
