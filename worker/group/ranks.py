"""The Ray side of a group's engines: their placement, the actors that run them, and calls to them."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from math import ceil
from typing import Any

from quirks_core.base.errors import QuirksError, shortened
from quirks_core.configuration.sections import ClusterSection
from quirks_core.configuration.variables import is_secret
from worker.engine import processes
from worker.errors import EngineDiedError, RankError
from worker.group.actor import EngineActor, plan_variables

#: Further variables than those that affect plans: processes read them before our code runs, or they name caches.
_TRAVELLING = ("HF_", "OMP_", "PYTHONHASHSEED", "TORCH", "TRANSFORMERS_")
#: Calls that an actor has in flight at most, one for each call of `generate_async` and the like: a pause must not wait.
_CALLS = 100_000
#: Seconds that an actor gets to answer a question that needs no engine.
_ANSWER_S = 3.0
_HOST_AND_PORT = re.compile(r"([^/]+):(\d+)")


class Rank:
    """The driver's handle of one engine.

    Attributes:
        number: Which engine of the group.
        node: Address of its node; empty until the actor answers, as all that follows.
        port: A free port there.
        pid: The actor's process.
        log: File that the actor and its engine's processes write to.
    """

    def __init__(self, number: int, actor: Any) -> None:
        self.number = number
        self.actor = actor
        self.node = ""
        self.port = 0
        self.pid = 0
        self.log = ""

    async def connect(self) -> None:
        """Waits until the actor runs and reports its node.

        Raises:
            RankError: It died.
        """
        vars(self).update(await self.call("who"))

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls the actor, whose event loop is blocked while the engine starts.

        Raises:
            RankError: The actor died, or raised an error that is not a `QuirksError`.
            QuirksError: The worker raised it; the message begins with the rank.
        """
        try:
            return await getattr(self.actor, method).remote(*arguments)
        except Exception as error:
            raise self._named(error) from None

    async def stream(self, *arguments: Any, **options: Any) -> AsyncGenerator[Any, None]:
        """Yields what the actor's generator yields; leaving early ends it there too. Errors as for `call`."""
        import ray

        has_ended = False
        try:
            items = self.actor.stream.options(num_returns="streaming").remote(*arguments, **options)
            async for item in items:
                yield await item
            has_ended = True
        except Exception as error:
            has_ended = True
            raise self._named(error) from None
        finally:
            if not has_ended:
                ray.cancel(items)
                # The next call of the engine must find these requests gone.
                with suppress(Exception):  # it ends as cancelled, or is late
                    async with asyncio.timeout(_ANSWER_S):
                        await items.completed()

    async def state(self) -> dict[str, Any]:
        """Returns the state of the engine within a few seconds, whatever it is."""
        where = {"rank": self.number, "node": self.node, "pid": self.pid}
        try:
            async with asyncio.timeout(_ANSWER_S):
                return {**where, **(await self.call("state"))}
        except TimeoutError:
            return {**where, "alive": False, "problem": f"its actor does not answer within {_ANSWER_S:g} s"}
        except QuirksError as error:
            return {**where, "alive": False, "problem": str(error)}

    def _named(self, error: Exception) -> QuirksError:
        from ray.exceptions import RayActorError, RayTaskError

        who = f"rank {self.number}"
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, EngineDiedError):
            return RankError(f"{who}: {cause}".replace(EngineDiedError.REMEDY, "call restart"))
        if isinstance(cause, QuirksError):
            cause.args = (f"{who}: {cause}",)
            return cause
        if isinstance(cause, RayActorError):
            where = f"process {self.pid or 'unknown'} on {self.node or 'no node yet'}"
            why = "" if self.pid else f": {shortened(str(cause))}"
            return RankError(f"{who}: its actor ({where}) died; call restart{why}")
        return RankError(f"{who}: {type(cause).__name__}: {shortened(str(cause))}")


class Ranks:
    """The actors of a group on one placement group.

    Attributes:
        all: The driver's handles of the engines, in the order of their ranks; empty before `create`.
    """

    def __init__(self, section: ClusterSection, *, engines: int, gpus: int, environment: Mapping[str, str]) -> None:
        """Keeps the settings of a start: engines, the GPUs of each, and variables that the configuration sets."""
        self.all: tuple[Rank, ...] = ()
        self._section = section
        self._engines = engines
        self._bundle = {"CPU": section.cpus_per_engine, **({"GPU": float(gpus)} if gpus else {})}
        self._configured = dict(environment)
        self._placement: Any = None
        self._started_ray = False

    async def create(self) -> None:
        """Creates the actors, each on its place; starts Ray if it does not run yet.

        Returns once each of them has reported its node.

        Raises:
            RankError: Ray has no room for them within the time limit, or one died.
        """
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        await self._connect()
        bundles = [dict(self._bundle) for _ in range(self._engines)]
        self._placement = placement_group(bundles, strategy=self._section.placement.upper())
        options = {
            "num_cpus": self._bundle["CPU"],
            "num_gpus": self._bundle.get("GPU", 0),
            "max_concurrency": _CALLS,
            "runtime_env": {"env_vars": travelling({**os.environ, **self._configured})},
        }
        try:
            async with asyncio.timeout(self._section.start_timeout_s):
                await self._placement.ready()
                places = [PlacementGroupSchedulingStrategy(self._placement, number) for number in range(self._engines)]
                actors = [ray.remote(EngineActor).options(**options, scheduling_strategy=place).remote() for place in places]
                self.all = tuple(Rank(number, actor) for number, actor in enumerate(actors))
                await asyncio.gather(*(rank.connect() for rank in self.all))
        except TimeoutError:
            have = {name: value for name, value in ray.available_resources().items() if name in self._bundle}
            raise RankError(
                f"Ray did not start {self._engines} engines with {self._bundle} each within cluster.start_timeout_s = "
                f"{self._section.start_timeout_s:g} s; free are {have}. Lower cluster.cpus_per_engine or "
                "engine.data_parallel_size, or add nodes"
            ) from None

    async def end(self, timeout_s: float) -> None:
        """Ends the actors, and Ray if `create` started it; engines get some time to stop before Ray kills their processes."""
        import ray

        ranks, self.all = self.all, ()
        if not ray.is_initialized():
            return  # and nothing is left of it
        if ranks and timeout_s:
            stopping = [asyncio.ensure_future(rank.call("call", "shutdown")) for rank in ranks]
            await asyncio.wait(stopping, timeout=timeout_s)
            for task in stopping:
                task.cancel()
            await asyncio.gather(*stopping, return_exceptions=True)
        here = ray.util.get_node_ip_address()
        killed = processes.children(rank.pid for rank in ranks if rank.pid and rank.node == here)
        for rank in ranks:
            ray.kill(rank.actor)
        await asyncio.to_thread(processes.end, killed)  # the next engines need their memory
        if self._placement is not None:  # its nodes may be gone
            ray.util.remove_placement_group(self._placement)
            self._placement = None
        if self._started_ray:
            ray.shutdown()
            self._started_ray = False

    async def _connect(self) -> None:
        """Starts Ray or joins a cluster, unless this process has one.

        Raises:
            RankError: The cluster cannot be reached.
        """
        import ray

        if ray.is_initialized():
            return
        address = self._section.address or os.environ.get("RAY_ADDRESS") or "local"
        own: dict[str, Any] = {}
        if address == "local":  # without an address Ray would join the cluster that was last started on this machine
            cpus = self._bundle["CPU"] * self._engines
            own = {"num_cpus": max(os.cpu_count() or 1, ceil(cpus)), "include_dashboard": False}
        try:
            if plain := _HOST_AND_PORT.fullmatch(address):  # Ray itself tries for two minutes, then ends the process
                async with asyncio.timeout(_ANSWER_S):
                    _, writer = await asyncio.open_connection(plain[1], int(plain[2]))
                    writer.close()
            ray.init(address, log_to_driver=False, configure_logging=False, **own)
        except (OSError, RuntimeError, SystemExit, TimeoutError, ValueError) as error:
            reason = shortened(str(error)) or "no answer"
            raise RankError(f"the Ray cluster at {address!r} (cluster.address) cannot be reached: {reason}") from error
        self._started_ray = True


def travelling(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that every actor's process starts with; nothing that looks like a secret: Ray logs them."""
    more = {name: value for name, value in environ.items() if name.startswith(_TRAVELLING) and not is_secret(name)}
    return {**plan_variables(environ), **more}
