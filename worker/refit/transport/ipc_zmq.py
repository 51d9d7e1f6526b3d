"""Refit on one machine: tensors through two shared buffers, their order and its acknowledgements over a private socket.

While the engine's processes read one buffer the trainer fills the other. The manifest goes first; a receiver that does not
agree with it rejects it before its model is touched. Tensors that lie in memory which both sides have open anyway
(`worker.refit.weights.pool`) are read there. The messages, each answered by ``{}`` or by ``{"error": reason}``::

    {"manifest": [[name, dtype, shape], …], "buffers": [handle, handle], "buffer_bytes": n, "protocol": 6}
    {"memory": key, "buffers": …}       instead, if some tensors are read where they are; the key stands for manifest and places
    {"manifest": …, "ranks": …}         if the answer to that was {"unknown": key}: what the key stands for
    {"chunk": 0}                        the first of the other tensors are in buffer 0; the answer gives the buffer back
    {"chunk": 1}                        the next ones are in buffer 1, and so on in turn
    {"done": true}                      all processes have accepted what comes, and may read the memory; the answer: they have
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from quirks_core.base.errors import words
from worker.errors import TransferError
from worker.refit.transport.channel import Channel
from worker.refit.transport.trainer_ranks import SharedPool
from worker.refit.weights.buffers import open_memory, shared_buffer, view
from worker.refit.weights.manifest import Manifest, in_order
from worker.refit.weights.pieces import Wholes, batches
from worker.refit.weights.pool import Copies, Opened
from worker.refit.weights.source import Source

if TYPE_CHECKING:
    from worker.refit.weights.copy_plan import CopyPlan

#: Version of the messages.
PROTOCOL = 6
#: One that is filled while the other is read.
_BUFFERS = 2


def send(
    tensors: Callable[[], Iterable[tuple[str, torch.Tensor]]],
    addresses: Sequence[str],
    *,
    device: torch.device | str = "cpu",
    manifest: Manifest | None = None,
    buffer_bytes: int = 1 << 29,
    timeout_s: float = 120.0,
    given_up: Callable[[], bool] = lambda: False,
) -> None:
    """Sends a refit from the trainer, while the worker's ``update_weights_via_ipc_zmq_async`` runs; either may start first.

    Args:
        tensors: Called for each pass over names and tensors, on any device: a function such as ``lambda: refit.tensors(model,
            scope)``, or a `worker.refit.weights.source.Source`, which brings its manifest with it. The engine's processes read
            tensors that lie in a source's model from there, if the memory is on ``device`` and, on the CPU, shared; they must
            not change before this returns.
        addresses: What the worker's ``report_refit_addresses_async`` returned, or those of one GPU's processes.
        device: Where the buffers lie: the GPU that this trainer rank and the engine's processes share, or the CPU.
        manifest: What will be sent; found out by a pass over the tensors if None.
        buffer_bytes: Size of each of two buffers; they grow to the largest tensor.
        timeout_s: Seconds to wait for each answer, the engine's start of the update included.
        given_up: Called while it waits; True ends the wait.

    Raises:
        RefitRejectedError: The tensors are not those of the manifest.
        TransferError: An engine process rejects the refit, died, or took too long; or there is no memory for the buffers.
            Any error is reported to the engine's processes, which wait for this; if none is there, within ``timeout_s``.
    """
    device = torch.empty(0, device=device).device  # with its number
    with ExitStack() as stack, _Channels(addresses, timeout_s, given_up) as peers:  # an error in here is sent to them
        source = tensors if isinstance(tensors, Source) else None
        manifest = source.manifest if source is not None else manifest or Manifest.of(tensors())
        _wait_for(device)  # what is read in place must be there
        pool = SharedPool.of(source, device, timeout_s) if source is not None else SharedPool()
        rest = manifest.without(pool.names)
        size = rest.buffer_size(buffer_bytes)
        needed = _BUFFERS if rest.tensors else 0
        buffers = [stack.enter_context(shared_buffer(size, device)) for _ in range(needed)]
        hello = {"buffers": [buffer.handle for buffer in buffers], "buffer_bytes": size, "protocol": PROTOCOL}
        with pool.together():
            peers.send({**hello, "memory": pool.key} if pool.key else {**hello, "manifest": manifest.encode()})
            unknown = ["unknown" in answer for answer in peers.receive()]
            if any(unknown):
                peers.send({"manifest": manifest.encode(), "ranks": pool.tables}, unknown)
                peers.receive()
        with pool.together():
            others = (tensor for name, tensor in in_order(tensors(), manifest) if name not in pool.names)
            for index, chunk in enumerate(rest.chunks(size)):
                memory = buffers[index % _BUFFERS].memory
                for spec, offset in chunk:
                    view(memory, spec, offset).copy_(next(others), non_blocking=True)
                _wait_for(device)
                peers.receive()
                peers.send({"chunk": index})
            peers.receive()
            peers.send({"done": True})
            peers.receive()


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class _Channels:
    """The connections to every engine process of a refit."""

    def __init__(self, addresses: Sequence[str], timeout_s: float, given_up: Callable[[], bool]) -> None:
        if not addresses:
            raise TransferError("refit by ipc_zmq: no addresses; call the worker's report_refit_addresses_async")
        self._peers = [
            Channel(Path(address), other=f"the engine's process at {address}", timeout_s=timeout_s, given_up=given_up)
            for address in addresses
        ]
        self._answering: list[Channel] = []

    def send(self, message: dict[str, Any], only: Iterable[bool] | None = None) -> None:
        """Sends a message to all, or to those that are marked."""
        self._answering = self._peers if only is None else list(compress(self._peers, only))
        for peer in self._answering:
            peer.send(message)

    def receive(self) -> list[dict[str, Any]]:
        """Waits for the replies to the last message; returns none if they were received before."""
        answers = [peer.receive() for peer in self._answering]
        self._answering = []
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Closes all, and sends an error of this side first, so that no process waits for it."""
        try:
            if error is not None and not isinstance(error, TransferError):
                self.send({"error": words(error)})
        except TransferError:
            pass  # a peer that does not receive it sees that the connection is closed
        finally:
            for peer in self._peers:
                peer.close()


class IpcZmqStream:
    """The engine's end of `send`: waits for a trainer, and yields what it sends.

    Attributes:
        manifest: What the trainer will send; it has been accepted.
        memory: The trainer's memory that this process has open; None if it has none.
        plan: Where tensors are copied; None if they are not.
        by_pieces: Whether this process reads only what it holds of what lies in that memory.
        complete: Whether everything was yielded.
        lasts: Tensors have memory of their own.
    """

    complete = False
    lasts = False

    def __init__(
        self,
        path: Path,
        expected: Manifest | None,
        *,
        device: torch.device,
        timeout_s: float,
        known: Opened | None = None,
        plan: Callable[[Manifest], CopyPlan | None] = lambda _: None,
    ) -> None:
        """Waits for the trainer's manifest.

        Args:
            path: Where to open the socket.
            expected: What was announced.
            device: Where this process computes.
            timeout_s: Seconds to wait for each message.
            known: The trainer's memory that this process has had open.
            plan: Returns where the tensors of a manifest are copied; None if they are not.

        Raises:
            RefitRejectedError: The manifest differs from what was announced.
            TransferError: No trainer came, it died, or its buffers cannot be opened.
        """
        self._device = device
        self.memory: Opened | None = None
        self._peer = Channel.bind(path, other="the trainer", timeout_s=timeout_s)
        try:
            hello = self._peer.receive()
            if hello.get("protocol") != PROTOCOL:
                raise TransferError(f"refit: the trainer speaks protocol {hello.get('protocol')}, this engine {PROTOCOL}")
            if "memory" in hello:
                self.memory = self._opened(hello["memory"], known)
            self.manifest = self.memory.manifest if self.memory is not None else Manifest.decode(hello["manifest"])
            self.manifest.check(expected)
            self.plan = plan(self.manifest)
            # A comparison needs whole tensors.
            self.by_pieces = self.memory is not None and self.plan is not None and not self.plan.is_checked
            self._copies = self.memory.copies(self.plan if self.by_pieces else None) if self.memory is not None else None
            self._buffers = [open_memory(handle, device) for handle in hello["buffers"]]
            self._buffer_bytes = int(hello["buffer_bytes"])
            self._peer.send({})
        except BaseException as error:
            self.close(error)
            raise

    def borrowed(self) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Yields names and tensors on this process' device where they are, valid until the next are requested.

        By pieces it yields, of those in the trainer's memory, an empty list first, and then those alone that do not go where a
        plan has them.

        Raises:
            TransferError: The trainer died, gave up or took too long.
        """
        rest = self.manifest.without(self.memory.names if self.memory is not None else ())
        for index, chunk in enumerate(rest.chunks(self._buffer_bytes)):
            if self._peer.receive().get("chunk") != index:
                raise TransferError(f"refit: the trainer did not send chunk {index} when it was due")
            memory = self._buffers[index % len(self._buffers)]
            yield [(spec.name, view(memory, spec, start)) for spec, start in chunk]
            _wait_for(memory.device)
            self._peer.send({})
        if not self._peer.receive().get("done"):
            raise TransferError("refit: the trainer sends more than its manifest says")
        if self._copies is not None:
            yield from self._copied(self._copies)
        self.complete = True

    def _opened(self, key: str, known: Opened | None) -> Opened:
        if known is not None and known.key == key:
            return known
        self._peer.send({"unknown": key})
        reply = self._peer.receive()
        return Opened(key, reply["ranks"], Manifest.decode(reply["manifest"]), self._device)

    def _copied(self, copies: Copies) -> Iterator[list[tuple[str, torch.Tensor]]]:
        if copies.parts:
            yield []
        for memory, part in copies.parts:
            memory.copy_(part, non_blocking=True)
        wholes = Wholes(self._device)
        yield from batches(pair for part in copies.wholes for pair in wholes.add(part, part.memory))
        _wait_for(self._device)

    def close(self, error: BaseException | None = None) -> None:
        """Answers the trainer, with the error if there is one, and closes the socket.

        The trainer's last message is answered only here: its refit is done when this process has loaded everything.
        """
        with suppress(TransferError):  # the peer is gone
            if error is not None:
                self._peer.send({"error": words(error)})
            elif self.complete:
                self._peer.send({})
        self._peer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.close(error)
