"""The group of a trainer: one worker per engine on Ray, used as one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from quirks_core.base.errors import QuirksError, UsageError
from quirks_core.configuration.config import GenerationConfig
from quirks_core.plan.receipt import Receipt
from quirks_core.plan.records import Plan
from quirks_core.plan.switches import SwitchNames
from quirks_core.plugins.planning import PlanOptions, make_plan
from worker import launch
from worker.calls import Calls
from worker.engine.engine_rank import EngineRank, Strategy
from worker.engine.serial_lock import to_the_end
from worker.engine.topology import Expected, Topology
from worker.errors import NotReadyError, RankError
from worker.group.actor import plan_variables
from worker.group.actor_set import ActorSet
from worker.group.ranks import Rank, Ranks
from worker.group.refits import GroupRefits
from worker.refit.weights.scope import RefitScope
from worker.server.server import bearer_key

if TYPE_CHECKING:
    import torch

#: Seconds in which engines must stop by themselves before they are killed; vLLM's own limit is 15.
_STOP_S = 30.0


class WorkerGroup(Calls):
    """Generates with several vLLM engines, each in a Ray actor, and takes new weights from a trainer.

    ``parallel.dp_strategy`` defines how the engines belong together. The constructor resolves the plan, so a refused
    configuration fails there; `start` creates the actors, starts all engines at the same time and checks the parallel ranks of
    every process. All calls must come from one event loop::

        async with WorkerGroup(config) as group:
            async for index, output in group.generate_async(batch):
                ...
            await group.refit_async(policy)

    An engine that dies ends the group: waiting callers get a `RankError` with its rank, and `restart` starts all engines again.

    Attributes:
        config: The configuration, with what the plan changes.
        plan: What applies and why; every process of every engine acknowledges this plan.
        strategy: How the engines belong together.
        warnings: What the user should know: the plan's warnings, and those of the engines.
        receipts: What every process of each engine acknowledged; available once the engines run.
        topology: The parallel ranks of all processes and the experts that each holds; empty before.
        refits: The refits of all engines together.
        openai_api_key: The bearer key that all servers require; None if there are none.
    """

    def __init__(
        self,
        config: GenerationConfig | Mapping[str, Any],
        *,
        disable: Sequence[str] = (),
        force: Sequence[str] = (),
    ) -> None:
        """Resolves the plan.

        Args:
            config: The configuration, or a nested mapping of one.
            disable: Names to turn off, as for the worker.
            force: Names to turn on, as for the worker.

        Raises:
            UsageError, RefusedError, LockError, BrokenPluginsError: As for the worker.
        """
        self._typed = launch.parsed(config)
        self._call = SwitchNames(disable, force)
        making = PlanOptions.gather(self._typed, call=self._call)
        registry = making.registry()
        self._fact_names = sorted(registry.fact_names)
        self.plan: Plan = make_plan(self._typed, making, registry=registry)
        self.plan.check()
        self.config: GenerationConfig = self._typed.adjusted(self.plan.changes)
        ranks = self.plan.value("engine.data_parallel_size")
        self.strategy: Strategy = self.plan.value("parallel.dp_strategy") or "independent"
        engines = 1 if self.strategy == "engine" else ranks
        self.warnings = launch.warnings(self.config, self.plan)
        model_ranks = self.config.engine.tensor_parallel_size * self.config.engine.pipeline_parallel_size
        self._ranks = Ranks(
            self.config.cluster,
            engines=engines,
            gpus=0 if self.plan.context.platform == "cpu" else model_ranks * ranks // engines,
            environment=self.config.env,
        )
        self.refits = GroupRefits(self.config.refit, self.plan, self._running)
        self._actors: ActorSet | None = None
        self._changing = asyncio.Lock()
        self._starts = 0
        self.topology = Topology(())
        self._announced: dict[str, Any] | None = None
        self._context = 0
        enabled = self.config.server.enabled
        self.openai_api_key = bearer_key(self.config.server).get_secret_value() if enabled else None
        self.receipts: list[Receipt] = []

    # ---- start and stop

    async def start(self) -> None:
        """Makes the actors and starts all engines at the same time.

        Raises:
            RankError: An engine did not start, or not within ``cluster.start_timeout_s``; the message names its log and
                the reason, which may be a process that does not apply the plan.
            TopologyError: The processes did not form the parallel groups of the plan, or an expert is missing.
        """
        async with self._changing:
            if self._actors is not None:
                raise QuirksError("the group is running already; call start once, or restart")
            await self._start()

    async def shutdown(self) -> None:
        """Stops every engine, ends the actors and releases their placement; may be called again; during a start, after it.

        Requests in flight end with `GenerationAbortedError`.
        """
        async with self._changing:
            await to_the_end(self._stop("the group was shut down"))

    async def restart(self) -> None:
        """Starts all engines again, on available nodes, after one has died or their weights mix two versions.

        Of several concurrent callers only one does it. Engines that start from dummy weights do not generate before the next
        refit. Announcements of refits stay valid; a collective must be joined again.

        Raises:
            RankError, TopologyError: As for `start`.
        """
        seen = self._starts
        async with self._changing:
            if self._starts != seen:
                return
            await to_the_end(self._stop("the group is being restarted"))
            await self._start()
            if self._announced is not None:
                await self.prepare_refit_info_async(self._announced)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    async def health(self) -> list[dict[str, Any]]:
        """Returns the state of every engine within a few seconds, whatever it is; nothing if the group does not run.

        Returns:
            For each ``rank``, ``node``, ``pid`` of its actor, ``in_flight`` requests, ``alive``, ``problem``: why it may not
            generate, None if it may; and of those that live ``weights`` (whole, dummy or broken) and their ``version``.
        """
        if self._actors is None:
            return []
        actors = self._actors
        states = await asyncio.gather(*(rank.state() for rank in actors.ranks))
        return [
            {**state, "problem": state["problem"] or actors.problem, "in_flight": count}
            for state, count in zip(states, actors.in_flight, strict=True)
        ]

    # ---- refit

    @property
    def _refits(self) -> GroupRefits:
        return self.refits

    async def prepare_refit_info_async(self, state_dict_info: Mapping[str, Any]) -> None:
        """Announces what every refit from now on will send, as for the worker."""
        await self._running().everybody("prepare_refit_info_async", dict(state_dict_info))
        self._announced = dict(state_dict_info)

    async def init_collective_async(self, ip: str, port: int, world_size: int, train_world_size: int = 1) -> None:
        """Joins the trainer's collective; the ranks of the engines follow those of the trainer.

        Args:
            ip: Address of trainer rank 0.
            port: Its port.
            world_size: Trainer ranks and engine ranks.
            train_world_size: Trainer ranks; they come first.
        """
        await self.refits.join(ip, port, world_size, train_world_size)

    async def verify_refit_async(self, model: torch.nn.Module, scope: RefitScope | str | None = None) -> dict[str, str]:
        """Compares what every engine holds with a model of this process.

        Returns:
            For each tensor that differs, what is different about it; the name ends in the rank.
        """
        return await self.refits.verify(model, scope)

    # ---- all ranks together: the ranks of a data-parallel group synchronise in each of these, so one alone would wait forever

    async def pause_async(self, mode: str = "keep", clear_cache: bool = False) -> None:
        """Stops generation on all engines until `resume_async`; arguments, and order among refits, as for the worker."""
        await self.refits.between("pause_async", mode, clear_cache)

    async def resume_async(self) -> None:
        """Resumes generation."""
        await self.refits.between("resume_async")

    async def sleep_async(self, level: int = 1) -> None:
        """Frees GPU memory, as the worker does."""
        await self.refits.between("sleep_async", level)

    async def wake_up_async(self, tags: Sequence[str] | None = None) -> None:
        """Allocates the memory again, as the worker does."""
        await self.refits.between("wake_up_async", tags)

    async def reset_prefix_cache_async(self) -> bool:
        """Drops the KV cache of past requests; False if an engine could not."""
        return all(await self._running().everybody("reset_prefix_cache_async"))

    # ---- servers

    async def report_dp_openai_server_base_urls(self) -> list[str]:
        """Returns the base URL of every OpenAI-compatible server, in the order of the ranks.

        With a ``server.port`` rank r listens on that port + r.
        """
        return [url for url in await self._running().everybody("report_dp_openai_server_base_url") if url is not None]

    # ---- parts

    async def _start(self) -> None:
        """Starts the engines; leaves nothing behind if that fails or is cancelled."""
        try:
            await self._ranks.create()
            ranks = self._ranks.all
            calls = [
                rank.call(
                    "start",
                    self._config_of(rank.number),
                    EngineRank(self.strategy, rank.number, len(ranks), ranks[0].node, ranks[0].port),
                    self.plan,
                    plan_variables({**os.environ, **self._typed.env}, self._fact_names),
                    self._fact_names,
                    self._call.disable,
                    self._call.force,
                )
                for rank in ranks
            ]
            started = await self._all_up(ranks, calls)
            self.topology = Topology(tuple(row for item in started for row in item["topology"].rows))
            self.topology.check(Expected.of(self.plan))
            self.receipts = [item["receipt"] for item in started]
            self.warnings += [text for item in started for text in item["warnings"] if text not in self.warnings]
            self._context = started[0]["longest"]
            devices = [[row.device for row in item["topology"].rows] for item in started]
            self.refits.started([rank.node for rank in ranks], devices)
            self._actors = ActorSet(ranks, self.config.refit.timeout_s)
            self._starts += 1
        except BaseException:
            await to_the_end(self._stop("the group did not start"))
            raise

    async def _stop(self, why: str) -> None:
        actors, self._actors = self._actors, None
        try:
            if actors is not None:
                await actors.disband(why)
        finally:  # another event loop than the one that started the engines cannot wait for its tasks
            self.refits.sender.leave()
            await self._ranks.end(_STOP_S if actors is not None else 0)  # engines that were still starting cannot listen

    def _config_of(self, number: int) -> dict[str, Any]:
        """The user's configuration for one engine: all servers have the same key, and each has its own port."""
        typed = self._typed.model_dump(mode="json", exclude_unset=True)
        server = self.config.server
        if self.openai_api_key is not None:
            typed["server"]["api_key"] = self.openai_api_key  # a dump hides keys
        if server.rl_api_key is not None:
            typed["server"]["rl_api_key"] = server.rl_api_key.get_secret_value()
        if server.port:
            typed["server"]["port"] = server.port + number
        return typed

    async def _all_up(self, ranks: Sequence[Rank], calls: Sequence[Coroutine[Any, Any, Any]]) -> list[dict[str, Any]]:
        """Waits until every engine runs; the first failure ends the wait, because the others would wait for that engine."""
        starting = [asyncio.ensure_future(call) for call in calls]
        limit_s = self.config.cluster.start_timeout_s
        try:
            await asyncio.wait(starting, timeout=limit_s, return_when=asyncio.FIRST_EXCEPTION)
            failed = {number: task.exception() for number, task in enumerate(starting) if task.done() and task.exception()}
            late = [number for number, task in enumerate(starting) if not task.done()]
            if not failed and not late:
                return [task.result() for task in starting]
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
        what = f"did not start within cluster.start_timeout_s = {limit_s:g} s; raise it, or see its log"
        reasons = {number: str(error) for number, error in failed.items()} or {n: f"rank {n} {what}" for n in late}
        problems = [f"{reason}\n    log: {ranks[n].log} on {ranks[n].node}" for n, reason in reasons.items()]
        raise RankError("the group did not start: " + "\n".join(problems)) from next(iter(failed.values()), None)

    def _running(self) -> ActorSet:
        """The engines, if they live."""
        if self._actors is None:
            raise QuirksError("the group is not running; call start first")
        self._actors.check()
        return self._actors

    @property
    def _longest(self) -> int:
        self._running()
        return self._context

    async def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        actors = self._running()
        found: list[list[int]] = await actors.alive(actors.ranks[0].call("call", "_encode", texts))
        return found

    def _stream(
        self, kind: str, rows: Sequence[list[int]], rank: int | None, *arguments: Any, **options: Any
    ) -> AsyncGenerator[tuple[int, Any], None]:
        actors, count = self._running(), self.plan.value("engine.data_parallel_size")
        if rank is not None and not 0 <= rank < count:
            raise UsageError(f"rank {rank} does not exist: there are {count}, counted from 0")
        if self.refits.problem is not None:
            raise NotReadyError(self.refits.problem)
        return actors.generate(kind, rows, rank, *arguments, **options)
