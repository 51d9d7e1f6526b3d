"""The Ray side of a group's engines: their placement, the actors that run them, and calls to them."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from math import ceil
from typing import Any

from quirks_core.base.errors import QuirksError, UsageError, shortened
from quirks_core.configuration.sections import ClusterSection
from quirks_core.configuration.variables import is_secret
from worker.errors import EngineDiedError, RankError
from worker.group.actor import EngineActor, plan_variables, reap

#: Further variables than those that affect plans: processes read them before our code runs, or they name caches.
_TRAVELLING = ("HF_", "OMP_", "PYTHONHASHSEED", "TORCH", "TRANSFORMERS_")
#: Concurrency group of the methods that answer while an engine starts, and how many of such calls an actor answers at once.
_WATCH, _WATCHED, _WATCHERS = "watch", ("state", "who"), 4
#: Calls that an actor has in flight at most: one for each call of `generate_async` and the like.
_CALLS = 4096
#: Those of them that are no streams of samples: a pause must not wait for them.
_RESERVED = 64
#: Seconds that an actor gets to answer a question that needs no engine.
_ANSWER_S = 3.0
#: Seconds that a killed actor's process gets to end before it is killed by the system's means.
_GRACE_S = 5.0
_HOST_AND_PORT = re.compile(r"([^/]+):(\d+)")
_LOGGER = logging.getLogger("model_quirks")


class Rank:
    """The driver's handle of one engine.

    Attributes:
        number: Which engine of the group.
        node: Address of its node; empty until the actor answers, as all that follows.
        port: A free port there.
        node_id: Ray's name of the node.
        pid: The actor's process.
        folder: The actor's temporary files.
        log: File that the actor and its engine's processes write to.
    """

    def __init__(self, number: int, actor: Any) -> None:
        self.number = number
        self.actor = actor
        self.node = ""
        self.port = 0
        self.node_id = ""
        self.pid = 0
        self.folder = ""
        self.log = ""
        self._streams = asyncio.Semaphore(_CALLS - _RESERVED)

    async def connect(self) -> None:
        """Waits until the actor runs and reports its node.

        Raises:
            RankError: It died.
        """
        found = await self.call("who")
        for name, value in found.items():
            setattr(self, name, value)

    async def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls the actor on its own event loop, which is blocked while the engine starts; what is watched answers then, too.

        Raises:
            RankError: The actor died, or raised an error that is not a `QuirksError`.
            QuirksError: The worker raised it; the message begins with the rank.
        """
        remote = getattr(self.actor, method)
        if method in _WATCHED:
            remote = remote.options(concurrency_group=_WATCH)
        try:
            return await remote.remote(*arguments, **named)
        except Exception as error:
            raise self._named(error) from None

    async def stream(self, *arguments: Any, **options: Any) -> AsyncGenerator[Any, None]:
        """Yields what the actor's generator yields; leaving early ends it there too. Errors as for `call`."""
        import ray

        items: Any = None
        async with self._streams:
            try:
                items = self.actor.stream.options(num_returns="streaming").remote(*arguments, **options)
                while True:
                    try:
                        item = await (await anext(items))
                    except StopAsyncIteration:
                        items = None
                        return
                    yield item
            except Exception as error:
                items = None  # it has ended
                raise self._named(error) from None
            finally:
                if items is not None:
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
            return _regiven(cause, f"{who}: {cause}")
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
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        await self._connect()
        await self._place()
        kind = ray.remote(concurrency_groups={_WATCH: _WATCHERS})(EngineActor)
        actors = [
            kind.options(
                num_cpus=self._bundle["CPU"],
                num_gpus=self._bundle.get("GPU", 0),
                max_concurrency=_CALLS,
                runtime_env={"env_vars": travelling({**os.environ, **self._configured})},
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=self._placement, placement_group_bundle_index=number
                ),
            ).remote()
            for number in range(self._engines)
        ]
        self.all = tuple(Rank(number, actor) for number, actor in enumerate(actors))
        limit_s = self._section.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*(rank.connect() for rank in self.all))
        except TimeoutError:
            missing = ", ".join(str(rank.number) for rank in self.all if not rank.pid)
            raise RankError(
                f"the group did not start: no actor for rank {missing} within cluster.start_timeout_s = {limit_s:g} s"
            ) from None

    async def end(self, timeout_s: float) -> None:
        """Ends the actors: engines get some time to stop by themselves, and are killed then with all their processes."""
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
        for rank in ranks:
            ray.kill(rank.actor)
        await asyncio.gather(*(self._reap(rank) for rank in ranks if rank.pid))
        if self._placement is not None:  # its nodes may be gone
            ray.util.remove_placement_group(self._placement)
            self._placement = None

    def disconnect(self) -> None:
        """Ends Ray if `create` started it."""
        import ray

        if self._started_ray:
            ray.shutdown()
            self._started_ray = False

    async def _connect(self) -> None:
        """Starts Ray or joins a cluster, unless this process has one.

        Raises:
            RankError: The cluster cannot be reached.
            UsageError: This process belongs to another cluster than the configured one.
        """
        import ray

        typed = self._section.address
        if ray.is_initialized():
            found = ray.get_runtime_context().gcs_address
            if typed is not None and await _resolved(typed) != await _resolved(found):
                raise UsageError(f"cluster.address is {typed!r}, but this process belongs to the Ray cluster at {found}")
            return
        address = typed or os.environ.get("RAY_ADDRESS") or "local"
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

    async def _place(self) -> None:
        import ray
        from ray.util.placement_group import placement_group

        self._placement = placement_group(
            [dict(self._bundle) for _ in range(self._engines)], strategy=self._section.placement.upper()
        )
        try:
            async with asyncio.timeout(self._section.start_timeout_s):
                await self._placement.ready()
        except TimeoutError:
            have = {name: value for name, value in ray.available_resources().items() if name in self._bundle}
            raise RankError(
                f"Ray found no room for {self._engines} engines with {self._bundle} each within cluster.start_timeout_s = "
                f"{self._section.start_timeout_s:g} s; free are {have}. Lower cluster.cpus_per_engine or "
                "engine.data_parallel_size, or add nodes"
            ) from None

    async def _reap(self, rank: Rank) -> None:
        """Waits until nothing is left of an actor, because the next step needs its memory."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        left = (rank.pid, rank.folder, _GRACE_S)
        if rank.node == ray.util.get_node_ip_address():
            await asyncio.to_thread(reap, *left)
            return
        there = NodeAffinitySchedulingStrategy(rank.node_id, soft=False)
        try:
            await ray.remote(reap).options(num_cpus=0, scheduling_strategy=there).remote(*left)
        except Exception as error:
            _LOGGER.warning("rank %d: its files on node %s were not removed: %s", rank.number, rank.node, error)


def travelling(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that every actor's process starts with; nothing that looks like a secret: Ray logs them."""
    more = {name: value for name, value in environ.items() if name.startswith(_TRAVELLING) and not is_secret(name)}
    return {**plan_variables(environ), **more}


async def _resolved(address: str) -> object:
    """Resolves an address: two spellings may mean the same."""
    plain = _HOST_AND_PORT.fullmatch(address)
    if plain is None:
        return address
    found = await asyncio.get_running_loop().getaddrinfo(plain[1], int(plain[2]), type=socket.SOCK_STREAM)
    return sorted(where for *_, where in found)


def _regiven(error: QuirksError, text: str) -> QuirksError:
    """Returns an error of the same class with another text; classes that need more than a text become a `RankError`."""
    return RankError(text) if "__init__" in vars(type(error)) else type(error)(text)
