"""Refits of a whole group: every engine takes the same weights at the same time, or none generates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from quirks_core.configuration.sections import RefitSection
from quirks_core.plan.records import Plan
from worker.engine.serial_lock import SerialLock
from worker.errors import RefitError, RefitRejectedError
from worker.group.actor_set import ActorSet
from worker.refit.advice import kind_of, main_cause, way_back
from worker.refit.sending import ModelSender
from worker.refit.weights.scope import RefitScope

if TYPE_CHECKING:
    import torch

#: The worker's calls that receive weights, by transport.
_METHODS = {"collective": "update_weights_from_collective_async", "ipc_zmq": "update_weights_via_ipc_zmq_async"}


class GroupRefits:
    """Sends weights to all engines of a group, one refit at a time.

    Attributes:
        problem: Why no engine may generate: they may hold weights of different versions. None if they have those of one policy.
        joined: Whether all processes are still in the group that they joined last.
        sender: Sends models of this process.
        lock: Held while a refit, a pause, a resume, sleep or waking is under way: all engines must take them in the same order.
        address: The address by which the engines reach this machine; empty before they run.
    """

    def __init__(self, section: RefitSection, plan: Plan, actors: Callable[[], ActorSet]) -> None:
        """Keeps what every refit needs; `actors` returns the running engines."""
        self.problem: str | None = None
        self._dummy = plan.value("engine.load_format") == "dummy"
        self.joined = False
        self.sender = ModelSender(self, section, plan.value("refit.scope"))
        self.address = ""
        self._actors = actors
        self.lock = SerialLock()
        self._attempts = 0
        self._elsewhere: list[str] = []
        self._devices: list[list[str]] = []

    def started(self, nodes: Iterable[str], devices: list[list[str]]) -> None:
        """Resets the state after a start of the engines, on nodes and with the devices of each engine's processes."""
        import ray

        self.joined = False
        self.address = ray.util.get_node_ip_address()
        self._elsewhere = sorted(set(nodes) - {self.address})
        self._devices = devices
        self.problem = None

    async def between(self, method: str, *arguments: Any) -> None:
        """Waits until no refit is under way, then calls a method of every worker."""
        await self.lock.run(lambda: self._actors().everybody(method, *arguments))

    async def receive(self, transport: str, version: str | None, clear_cache: bool | None) -> bool:
        """Has every engine receive a refit from a trainer in another process, by ``ipc_zmq`` or ``collective``."""
        await self.lock.run(lambda: self._update(_METHODS[transport], version, clear_cache))
        return True

    async def join(self, ip: str, port: int, world_size: int, train_world_size: int) -> None:
        """Has every process of every engine join the trainer's group, in the order of the engines."""
        ranks = sum(map(len, self._devices))
        if train_world_size + ranks != world_size:
            raise RefitError(
                f"init_collective_async: world_size = {world_size} is not the sum of train_world_size = {train_world_size} and "
                f"the group's {ranks} engine ranks"
            )
        await self.lock.run(lambda: self._join(ip, port, world_size, train_world_size))

    async def from_model(
        self, model: torch.nn.Module, scope: RefitScope | str | None, *, version: str | None, clear_cache: bool | None
    ) -> None:
        """Sends a model of this process to every engine."""
        method = _METHODS[self.sender.section.transport]
        await self.lock.run(lambda: self._send(model, scope, lambda: self._update(method, version, clear_cache)))

    async def verify(self, model: torch.nn.Module, scope: RefitScope | str | None) -> dict[str, str]:
        """Has every engine compare its weights with those of a model of this process."""
        found = await self.lock.run(lambda: self._send(model, scope, lambda: self._actors().everybody("verify_refit_async")))
        return {f"{name} on rank {rank}": problem for rank, one in enumerate(found) for name, problem in one.items()}

    async def devices(self) -> list[str]:
        """Returns the device of every process of every engine."""
        return [device for listed in self._devices for device in listed]

    async def addresses(self) -> list[str]:
        """Returns the path of every process' socket."""
        return [path for paths in await self._actors().everybody("report_refit_addresses_async") for path in paths]

    async def join_sender(self, port: int, world_size: int) -> None:
        """Has every process of every engine join the group that this process opens."""
        await self._join(self.address, port, world_size, 1)

    async def _send(self, model: torch.nn.Module, scope: RefitScope | str | None, update: Any) -> Any:
        transport = self.sender.section.transport
        if transport != "collective" and self._elsewhere:
            where = f"engines on other nodes ({', '.join(self._elsewhere)})"
            raise RefitError(f"refit.transport {transport!r} does not reach {where}; set refit.transport: collective")
        return await self.sender.send(model, scope, update)

    async def _join(self, ip: str, port: int, world_size: int, train_world_size: int) -> None:
        self.joined = False
        self.sender.leave()
        before = [0, *accumulate(map(len, self._devices))][:-1]
        each = [(first, ip, port, world_size, train_world_size) for first in before]
        await self._actors().everybody("init_collective_async", each=each)
        self.joined = True

    async def _update(self, method: str, version: str | None, clear_cache: bool | None) -> None:
        self._attempts += 1  # of a failed one, some engines may have the label
        label = version if version is not None else str(self._attempts)
        found = await self._actors().outcomes(method, label, clear_cache)
        errors = {rank: item for rank, item in enumerate(found) if isinstance(item, BaseException)}
        if not errors:
            self.problem = None
            return
        cause = main_cause(errors.values())
        self.joined &= isinstance(cause, RefitRejectedError)
        if len(errors) < len(found):  # else each engine has the weights that it had, or does not generate by itself
            self.problem = (
                "the engines may hold weights of different versions: a refit failed on rank "
                f"{', '.join(map(str, errors))}; {way_back(kind_of(cause), dummy=self._dummy, restart='restart')}"
            )
        raise cause
