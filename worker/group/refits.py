"""Refits of a whole group: every engine takes the same weights at the same time, or none generates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from quirks_core.plan import Plan
from worker.config import RefitSection
from worker.errors import NotReadyError, RefitError
from worker.group.crew import Crew
from worker.refit import sending
from worker.refit.manifest import Manifest
from worker.refit.scope import RefitScope, gathered, layout
from worker.turns import Turns

if TYPE_CHECKING:
    import torch

    from worker.refit.collective import CollectiveSender


class GroupRefits:
    """Sends weights to all engines of a group, one refit at a time.

    Attributes:
        problem: Why nothing may be generated: the engines may hold weights of different versions. None if they agree.
    """

    def __init__(self, section: RefitSection, plan: Plan, crew: Callable[[], Crew]) -> None:
        """Keeps what every refit needs.

        Args:
            section: How weights are transferred.
            plan: What a refit sends.
            crew: Returns the running engines.
        """
        self.problem: str | None = None
        self._section = section
        self._scope = RefitScope(plan.value("refit.scope"))
        self._crew = crew
        self._turns = Turns()
        self._attempts = 0
        self._processes: list[int] = []
        self._elsewhere: list[str] = []
        self._devices: list[str] = []
        self._sender: CollectiveSender | None = None

    def started(self, nodes: Iterable[str], devices: Iterable[list[str]]) -> None:
        """The engines are up, and nobody has joined a collective.

        Args:
            nodes: Addresses of the engines' nodes.
            devices: The devices of the processes of each engine.
        """
        import ray

        self.drop_sender()
        listed = [list(item) for item in devices]
        self._elsewhere = sorted(set(nodes) - {ray.util.get_node_ip_address()})
        self._processes = [len(item) for item in listed]
        self._devices = [device for item in listed for device in item]
        self.problem = None

    def check(self) -> None:
        """Makes sure that all engines hold the weights of one policy.

        Raises:
            NotReadyError: They may not.
        """
        if self.problem is not None:
            raise NotReadyError(self.problem)

    async def update(self, method: str, version: str | None, clear_cache: bool | None) -> bool:
        """Has every engine take a refit that a trainer elsewhere sends.

        Args:
            method: The worker's method.
            version: Label of the new weights; a running number if None. All engines get the same.
            clear_cache: As for the worker.
        """
        await self._turns.take(lambda: self._update(method, version, clear_cache))
        return True

    async def join(self, ip: str, port: int, world_size: int, train_world_size: int) -> None:
        """Has every process of every engine join the trainer's group, in the order of the engines."""
        if train_world_size + sum(self._processes) != world_size:
            raise RefitError(
                f"init_collective_async: world_size = {world_size} is not the sum of train_world_size = {train_world_size} and "
                f"the group's {sum(self._processes)} engine ranks"
            )
        await self._turns.take(lambda: self._join(ip, port, world_size, train_world_size))

    async def from_model(
        self, model: torch.nn.Module, scope: RefitScope | str | None, version: str | None, clear_cache: bool | None
    ) -> None:
        """Sends a model of this process to every engine."""
        await self._turns.take(lambda: self._send(model, scope, lambda method: self._update(method, version, clear_cache)))

    async def verify(self, model: torch.nn.Module, scope: RefitScope | str | None) -> dict[str, str]:
        """Has every engine compare its weights with those of a model of this process."""

        async def compare(_: str) -> list[dict[str, str]]:
            return await self._crew().everybody("verify_refit_async")

        found = await self._turns.take(lambda: self._send(model, scope, compare))
        return {f"{name} on rank {rank}": problem for rank, one in enumerate(found) for name, problem in one.items()}

    def drop_sender(self) -> None:
        """Leaves the collective."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    async def _send(self, model: torch.nn.Module, scope: RefitScope | str | None, update: Callable[[str], Any]) -> Any:
        """Sends a model while the engines update, or whatever else they do with the weights."""
        state = await asyncio.to_thread(layout, model, self._scope if scope is None else RefitScope(scope))

        def source() -> Iterable[tuple[str, torch.Tensor]]:
            return gathered(state)

        common: dict[str, Any] = {"manifest": Manifest.of(state.items()), "buffer_bytes": self._section.buffer_mb << 20}
        transport = self._section.transport
        if transport == "collective":
            sender = await self._own_sender(model)
            try:
                return await sending.alongside(
                    lambda _: sender.send(source, **common), update("update_weights_from_collective_async")
                )
            except BaseException:
                self.drop_sender()
                raise
        if transport != "ipc_zmq" or self._elsewhere:
            where = f"engines on other nodes ({', '.join(self._elsewhere)})" if self._elsewhere else "a group"
            raise RefitError(f"refit.transport {transport!r} does not reach {where}; set refit.transport: collective")
        from worker.refit.ipc_zmq import send

        addresses = [path for paths in await self._crew().everybody("report_refit_addresses_async") for path in paths]
        common |= {"device": sending.shared_device(model, self._devices), "timeout_s": self._section.timeout_s}
        return await sending.alongside(
            lambda given_up: send(source, addresses, given_up=given_up, **common), update("update_weights_via_ipc_zmq_async")
        )

    async def _own_sender(self, model: torch.nn.Module) -> CollectiveSender:
        """Opens a collective of this process and all engines, once."""
        if self._sender is None:
            import ray

            ip, size = ray.util.get_node_ip_address(), 1 + sum(self._processes)
            self._sender = await sending.open_collective(
                ip,
                size,
                lambda port: self._join(ip, port, size, 1),
                model=model,
                engine=self._devices,
                timeout_s=self._section.timeout_s,
            )
        return self._sender

    async def _join(self, ip: str, port: int, world_size: int, train_world_size: int) -> None:
        before = [0, *accumulate(self._processes)][:-1]
        each = [(first, ip, port, world_size, train_world_size) for first in before]
        await self._crew().everybody("init_collective_async", each=each)

    async def _update(self, method: str, version: str | None, clear_cache: bool | None) -> None:
        self._attempts += 1  # of a failed one, some engines may have the label
        label = version if version is not None else str(self._attempts)
        found = await self._crew().outcomes(method, label, clear_cache)
        failed = [rank for rank, item in enumerate(found) if isinstance(item, BaseException)]
        if not failed:
            self.problem = None
            return
        states = await asyncio.gather(*(rank.state() for rank in self._crew().ranks))
        half = [rank for rank in failed if states[rank]["problem"] is not None or states[rank].get("version") == label]
        if half or len(failed) < len(found):
            self.problem = (
                f"the engines may hold weights of different versions: a refit failed on rank {_listed(failed)}"
                f"{f', half-way on rank {_listed(half)}' if half else ''}; refit once more, completely, or call restart"
            )
        raise found[failed[0]]


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
