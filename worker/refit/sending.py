"""The trainer's side of a refit in the driver's own process: the sender runs in a thread while the engines update."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from quirks_core.configuration.sections import RefitSection
from worker.engine.topology import device_id
from worker.errors import RefitError, RefitRejectedError
from worker.refit.transport.channel import free_port
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.scope import RefitScope

if TYPE_CHECKING:
    import torch

    from worker.refit.transport.collective import CollectiveSender
    from worker.refit.weights.source import Source

_T = TypeVar("_T")
#: What engines do with weights that come.
Update = Callable[[], Coroutine[Any, Any, _T]]


class Receivers(Protocol):
    """The processes of one engine or of several, to whom sends them weights.

    Attributes:
        joined: Whether they are all still in the group that they joined last.
    """

    joined: bool

    @property
    def address(self) -> str:
        """This machine's address, as they reach it."""

    async def devices(self) -> list[str]:
        """Returns the device of every process."""

    async def addresses(self) -> list[str]:
        """Returns the path of every process' socket."""

    async def join_sender(self, port: int, world_size: int) -> None:
        """Has every process join the group that this process opens as rank 0."""


class ModelSender:
    """Sends models of this process to engines, by the configured transport.

    Attributes:
        section: How weights are transferred.
    """

    def __init__(self, receivers: Receivers, section: RefitSection, scope: str) -> None:
        """Keeps what every refit needs.

        Args:
            receivers: The engines' processes.
            section: How weights are transferred.
            scope: What to send, unless a call has its own.
        """
        self.section = section
        self._receivers = receivers
        self._scope = RefitScope(scope)
        self._collective: CollectiveSender | None = None

    async def send(
        self, model: torch.nn.Module, scope: RefitScope | str | None, update: Update[_T], announced: Manifest | None = None
    ) -> _T:
        """Sends a model while the engines update, or whatever else they do with the weights.

        Args:
            model: The trainer's model.
            scope: What to send; as planned if None.
            update: The engines' side.
            announced: What the trainer announced.

        Returns:
            What the engines' side returned.

        Raises:
            RefitRejectedError: The model is not what was announced, here or to an engine; nothing was changed.
        """
        from worker.refit.weights.source import Source

        # In a thread, while the engines still generate.
        source = await asyncio.to_thread(Source, model, self._scope if scope is None else scope)
        source.manifest.check(announced)  # before anything waits for it
        ways = {"collective": self._by_collective, "ipc_zmq": self._by_ipc_zmq}
        return await ways[self.section.transport](source, update)

    def leave(self) -> None:
        """Leaves the collective, if one is open; not while it sends."""
        collective, self._collective = self._collective, None
        if collective is not None:
            collective.close()

    async def _by_ipc_zmq(self, source: Source, update: Update[_T]) -> _T:
        import torch

        from worker.refit.transport.ipc_zmq import send

        cpu = torch.device("cpu")
        own = next((tensor.device for tensor in source.model.parameters()), cpu)
        is_shared = set(await self._receivers.devices()) == {device_id(own)}
        sending = partial(
            send,
            source,
            await self._receivers.addresses(),
            device=own if is_shared else cpu,
            buffer_bytes=self.section.buffer_mb << 20,
            timeout_s=self.section.timeout_s,
        )
        return await _alongside(sending, update())

    async def _by_collective(self, source: Source, update: Update[_T]) -> _T:
        if self._collective is None or not self._receivers.joined:
            self.leave()
            self._collective = await self._open(source.model)
        sending = partial(self._collective.send, source, buffer_bytes=self.section.buffer_mb << 20)
        try:
            return await _alongside(sending, update())
        except RefitRejectedError:
            raise  # by all ranks together
        except BaseException:
            self.leave()  # after a failed collective the group must be rejoined
            raise

    async def _open(self, model: torch.nn.Module) -> CollectiveSender:
        """Opens a collective of this process, rank 0, and all of the engines'."""
        import torch

        from worker.refit.transport.collective import CollectiveSender

        devices, address = await self._receivers.devices(), self._receivers.address
        port, size = free_port(address), 1 + len(devices)
        device = torch.device("cpu") if "cpu" in devices else next(model.parameters()).device
        if device.type == "cpu" and "cpu" not in devices:
            raise RefitError(
                "refit by collective: the model is on the CPU and the engine on a GPU; move the model to a GPU of its own, or "
                "set refit.transport to ipc_zmq"
            )
        making = partial(CollectiveSender, world_size=size, device=device, timeout_s=self.section.timeout_s)
        opening = asyncio.ensure_future(asyncio.to_thread(making, address, port))
        try:
            await self._receivers.join_sender(port, size)
        except BaseException:
            await asyncio.gather(opening, return_exceptions=True)
            raise
        return await opening


async def _alongside(send: Callable[..., None], update: Coroutine[Any, Any, _T]) -> _T:
    """Runs a sender in a thread while the engines' side runs here, whose result it returns; each ends when the other fails."""
    over = threading.Event()
    sender = asyncio.ensure_future(asyncio.to_thread(send, given_up=over.is_set))
    try:
        result = await update
    except BaseException:
        over.set()
        await asyncio.gather(sender, return_exceptions=True)  # the engine's error is the cause
        raise
    await sender
    return result
