"""The group that a trainer holds: one worker per engine on Ray, used as one."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self, TypeVar

from quirks_core.errors import QuirksError, UsageError
from quirks_core.receipt import Receipt
from quirks_core.switches import Wishes
from worker import launch
from worker.batch import Batch, prompts, stop_strings
from worker.config import GenerationConfig
from worker.errors import BatchError, GenerationTimeoutError, RankError
from worker.group.ranks import Rank, Ranks
from worker.group.refits import GroupRefits
from worker.group.router import Router
from worker.place import Place, Strategy
from worker.refit.scope import RefitScope
from worker.server.config import ServerSection
from worker.topology import Expected, Topology

if TYPE_CHECKING:
    import torch

_T = TypeVar("_T")
#: Seconds that engines get to stop by themselves before they are killed; vLLM's own limit is 15.
_STOP_S = 30.0
#: An engine has yielded its last sample.
_END = object()


class WorkerGroup:
    """Generates with several vLLM engines, each in a Ray actor, and takes new weights from a trainer.

    How the engines belong together says ``parallel.dp_strategy``. Making the group resolves the plan, so a configuration that
    is refused fails here; `start` makes the actors, starts all engines at the same time and has every process prove which
    parallel ranks it is. All calls must come from one event loop::

        async with WorkerGroup(config) as group:
            async for index, output in group.generate_async(batch):
                ...
            await group.refit_async(policy)

    An engine that dies ends the group: whoever waits gets a `RankError` with its rank, and `restart` brings all of it back.

    Attributes:
        config: The configuration.
        plan: What applies and why; every process of every engine acknowledges this plan.
        strategy: How the engines belong together.
        warnings: What the user should know: the plan's warnings, and those of the engines.
        receipts: What every process of each engine has; there once the engines run.
        openai_api_key: The bearer key that all servers ask for; None if there are none, or they ask for none.
    """

    def __init__(
        self, config: GenerationConfig | Mapping[str, Any], *, disable: Sequence[str] = (), force: Sequence[str] = ()
    ) -> None:
        """Resolves the plan.

        Args:
            config: The configuration, or a nested mapping of one.
            disable: Names to turn off, as for the worker.
            force: Names to turn on, as for the worker.

        Raises:
            UsageError: Something in the configuration is wrong.
            RefusedError: The configuration cannot work; the error lists all reasons.
        """
        self.config: GenerationConfig = config if isinstance(config, GenerationConfig) else GenerationConfig.parse(config)
        if not self.config.engine.async_engine:
            raise UsageError("engine.async_engine is false, but a WorkerGroup runs asynchronous engines")
        self._wishes = Wishes(disable, force)
        _, self.plan = launch.resolve(self.config, self._wishes)
        ranks = self.plan.value("engine.data_parallel_size")
        self.strategy: Strategy = self.plan.value("parallel.dp_strategy") or "independent"
        engines = 1 if self.strategy == "engine" else ranks
        self.warnings: list[str] = list(self.plan.warnings)
        model_ranks = self.config.engine.tensor_parallel_size * self.config.engine.pipeline_parallel_size
        self._ranks = Ranks(
            self.config.cluster,
            engines=engines,
            gpus=0 if self.plan.context.platform == "cpu" else model_ranks * ranks // engines,
            environment=self.config.env,
        )
        self._refits = GroupRefits(self.config.refit, self.plan, self._everybody)
        self._router = Router(engines)
        self._failure: asyncio.Future[None] | None = None
        self._watching: list[asyncio.Task[None]] = []
        self._topology: Topology | None = None
        self._announced: dict[str, Any] | None = None
        self._longest = 0
        self.openai_api_key: str | None = _key(self.config.server)
        self.receipts: list[Receipt] = []

    # ---- start and stop

    @property
    def topology(self) -> Topology:
        """Which parallel ranks all processes are and which experts each of them holds.

        Raises:
            QuirksError: The group has not been started.
        """
        if self._topology is None:
            raise QuirksError("there is no topology before the engines run; call start first")
        return self._topology

    async def start(self) -> None:
        """Makes the actors and starts all engines at the same time.

        Raises:
            RankError: An engine did not come up, or not within ``cluster.start_timeout_s``; the message has its last lines and
                the reason, which may be a process that does not carry out the plan.
            TopologyError: The processes did not form the parallel groups of the plan, or an expert is missing.
        """
        if self._failure is not None:
            raise QuirksError("the group is running already; call start once, or restart")
        self._failure = asyncio.get_running_loop().create_future()
        try:
            await self._start()
        except BaseException:
            await self.shutdown()
            raise

    async def shutdown(self) -> None:
        """Stops every engine, ends the actors and gives their place back; may be called again."""
        await self._stop("the group was shut down")
        self._ranks.disconnect()

    async def restart(self) -> None:
        """Starts all engines anew, on nodes that are there, after one has died or has been left with weights of two versions.

        Engines that start from dummy weights do not generate before the next refit. What was announced of refits stays so; a
        collective has to be joined anew.

        Raises:
            RankError, TopologyError: As for `start`.
        """
        await self._stop("the group is being restarted")
        await self.start()
        if self._announced is not None:
            await self.prepare_refit_info_async(self._announced)
        if self.plan.value("engine.load_format") == "dummy":
            self._refits.problem = "the group was restarted from dummy weights; refit before generating"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    async def health(self) -> list[dict[str, Any]]:
        """Returns how every engine is doing.

        Returns:
            For each ``rank``, ``node``, ``pid`` of its actor, ``in_flight`` requests, ``alive``, ``problem``: why it may not
            generate, None if it may; and ``version`` of the weights of those that live.
        """
        ranks = self._ranks.all
        states = await asyncio.gather(*(rank.call("state") for rank in ranks), return_exceptions=True)
        return [
            {
                "rank": rank.number,
                "node": rank.node,
                "pid": rank.pid,
                "in_flight": self._router.in_flight[rank.number],
                **({"alive": False, "problem": str(state)} if isinstance(state, BaseException) else state),
            }
            for rank, state in zip(ranks, states, strict=True)
        ]

    # ---- generation

    async def generate_async(
        self, data: Mapping[str, Any], greedy: bool = False, rank: int | None = None
    ) -> AsyncGenerator[tuple[int, Batch], None]:
        """Generates from a batch of prompts; each goes to the engine with the least to do.

        Args:
            data: As for the worker.
            greedy: Take the most probable token instead of sampling.
            rank: The data-parallel rank that all of them go to; the group chooses if None.

        Yields:
            ``(original_index, output)`` as each sample finishes, as for the worker.

        Raises:
            BatchError: The batch does not have that form; nothing was sent.
            NotReadyError: Engines sleep, or their weights are not those of one policy.
            GenerationTimeoutError: Samples took too long; raised after all others were yielded.
            GenerationAbortedError: A refit failed half-way meanwhile, or the group was shut down.
            RankError: An engine died.
        """
        rows = dict(enumerate(prompts(data)))
        self._check(rank)
        if too_long := [index for index, row in rows.items() if len(row) > self._longest]:
            raise BatchError(f"batch: rows {too_long} are longer than engine.max_model_len = {self._longest}")
        stop = stop_strings(data, len(rows), self.config.sampling.stop_strings)
        async with aclosing(self._generate("samples", rows, stop, greedy, rank)) as samples:
            async for item in samples:
                yield item

    async def generate_text_async(
        self, data: Mapping[str, Any], greedy: bool = False, rank: int | None = None
    ) -> AsyncGenerator[tuple[int, dict[str, list[str]]], None]:
        """Generates text from a batch of text prompts, as the worker does; ``rank`` and errors as for `generate_async`."""
        texts = data.get("prompts")
        if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise BatchError("batch: 'prompts' must be a list of texts")
        self._check(rank)
        encoded = await self._alive(self._ranks.all[0].call("encode", list(texts)))
        rows = dict(enumerate(encoded))
        if wrong := [index for index, row in rows.items() if not 0 < len(row) < self._longest]:
            raise BatchError(f"batch: prompts {wrong} are empty or leave no room below engine.max_model_len = {self._longest}")
        stop = stop_strings(data, len(rows), self.config.sampling.stop_strings)
        async with aclosing(self._generate("texts", rows, stop, greedy, rank)) as finished:
            async for index, text in finished:
                yield index, {"texts": [text]}

    # ---- refit

    async def prepare_refit_info_async(self, state_dict_info: Mapping[str, Any]) -> None:
        """Announces what every refit from now on will send, as for the worker."""
        await self._everybody("prepare_refit_info_async", dict(state_dict_info))
        self._announced = dict(state_dict_info)

    async def report_refit_addresses_async(self) -> list[str]:
        """Returns the path of every engine process' socket; a sender connects to all of them."""
        return [path for paths in await self._everybody("report_refit_addresses_async") for path in paths]

    async def update_weights_via_ipc_zmq_async(self, version: str | None = None, clear_cache: bool | None = None) -> bool:
        """Has every engine take new weights from a trainer on this machine; arguments and errors as for the worker.

        If it fails on some of them, nothing is generated before a complete refit of all, or `restart`.
        """
        return await self._refits.update("update_weights_via_ipc_zmq_async", version, clear_cache)

    async def init_collective_async(self, ip: str, port: int, world_size: int, train_world_size: int = 1) -> None:
        """Joins the trainer's collective; the ranks of the engines follow those of the trainer.

        Args:
            ip: Address of trainer rank 0.
            port: Its port.
            world_size: Trainer ranks and engine ranks.
            train_world_size: Trainer ranks; they come first.
        """
        await self._refits.join(ip, port, world_size, train_world_size)

    async def update_weights_from_collective_async(self, version: str | None = None, clear_cache: bool | None = None) -> bool:
        """Takes new weights from the collective; else as `update_weights_via_ipc_zmq_async`."""
        return await self._refits.update("update_weights_from_collective_async", version, clear_cache)

    async def refit_async(
        self,
        model: torch.nn.Module,
        scope: RefitScope | str | None = None,
        *,
        version: str | None = None,
        clear_cache: bool | None = None,
    ) -> None:
        """Gives every engine the weights of a model in this process, by ``refit.transport``; arguments as for the worker."""
        self._check(None, ready=False)
        await self._refits.from_model(model, scope, version, clear_cache)

    async def verify_refit_async(self, model: torch.nn.Module, scope: RefitScope | str | None = None) -> dict[str, str]:
        """Compares what every engine holds with a model of this process.

        Returns:
            For each tensor that differs, what is different about it; the name ends in the rank.
        """
        self._check(None, ready=False)
        return await self._refits.verify(model, scope)

    # ---- all ranks together: those of one data-parallel group agree on each of these, and one alone would wait for ever

    async def pause_async(self, mode: str = "keep", clear_cache: bool = False) -> None:
        """Stops generation everywhere until `resume_async`; arguments as for the worker."""
        await self._everybody("pause_async", mode, clear_cache)

    async def resume_async(self) -> None:
        """Lets generation go on."""
        await self._everybody("resume_async")

    async def sleep_async(self, level: int = 1) -> None:
        """Gives the GPUs' memory back, as the worker does."""
        await self._everybody("sleep_async", level)

    async def wake_up_async(self, **kwargs: Any) -> None:
        """Takes memory again, as the worker does."""
        await self._everybody("wake_up_async", **kwargs)

    async def reset_prefix_cache_async(self) -> bool:
        """Forgets the KV cache of past requests; False if an engine could not."""
        return all(await self._everybody("reset_prefix_cache_async"))

    async def report_dp_openai_server_base_urls(self) -> list[str]:
        """Returns the base URL of every OpenAI-compatible server, in the order of the ranks.

        With a ``server.port`` rank r listens on that port + r.
        """
        return [url for url in await self._everybody("report_dp_openai_server_base_url") if url is not None]

    # ---- parts

    async def _start(self) -> None:
        await self._ranks.create()
        ranks = self._ranks.all
        address, port = await ranks[0].call("meeting_point")
        calls = [
            rank.call(
                "start",
                self._config_of(rank.number),
                Place(self.strategy, rank.number, len(ranks), address, port),
                self.plan.to_json(),
                self._wishes.disable,
                self._wishes.force,
            )
            for rank in ranks
        ]
        started = await self._all_up(ranks, calls)
        self.receipts = [Receipt.model_validate_json(item["receipt"]) for item in started]
        self._topology = Topology.joined(
            Topology.of(json.loads(item["topology"]), engine=rank.number) for rank, item in zip(ranks, started, strict=True)
        )
        self._topology.check(Expected.of(self.plan))
        self._longest = started[0]["longest"]
        self._refits.started(ranks, [item["devices"] for item in started])
        self._router = Router(len(ranks))
        self.warnings += [text for item in started for text in item["warnings"] if text not in self.warnings]
        self._watching = [asyncio.ensure_future(self._watch(rank)) for rank in ranks]

    def _config_of(self, number: int) -> dict[str, Any]:
        """What the user typed, for one engine: of the servers, all have one key, and each has a port of its own."""
        typed = self.config.model_dump(mode="json", exclude_unset=True)
        server = self.config.server
        if self.openai_api_key is not None:
            typed["server"]["api_key"] = self.openai_api_key  # a dump hides it
        if server.port:
            typed["server"]["port"] = server.port + number
        return typed

    async def _all_up(self, ranks: Sequence[Rank], calls: Sequence[Coroutine[Any, Any, Any]]) -> list[dict[str, Any]]:
        """Waits until every engine is up; the first that fails ends the wait, because the others would wait for it."""
        starting = [asyncio.ensure_future(call) for call in calls]
        limit_s = self.config.cluster.start_timeout_s
        done, pending = await asyncio.wait(starting, timeout=limit_s, return_when=asyncio.FIRST_EXCEPTION)
        failed = [number for number, task in enumerate(starting) if task in done and task.exception() is not None]
        late = [number for number, task in enumerate(starting) if task in pending]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        if failed:
            logs = await asyncio.gather(*(ranks[number].tail() for number in failed))
            problems = [_with_log(str(starting[number].exception()), log) for number, log in zip(failed, logs, strict=True)]
            raise RankError("the group did not start: " + "\n".join(problems)) from starting[failed[0]].exception()
        if late:
            logs = await asyncio.gather(*(ranks[number].tail() for number in late))
            what = f"is not up within cluster.start_timeout_s = {limit_s:g} s; raise it, or see what it last said"
            problems = [_with_log(f"rank {number} {what}", log) for number, log in zip(late, logs, strict=True)]
            raise RankError("the group did not start: " + "\n".join(problems))
        return [task.result() for task in starting]

    async def _watch(self, rank: Rank) -> None:
        """Waits for the end of an engine, which is the end of the group."""
        try:
            how = await rank.call("death")
        except QuirksError as error:
            how = str(error).removeprefix(f"rank {rank.number}: ")
        self._fail(RankError(f"rank {rank.number} of {len(self._ranks.all)} died: {how}; call restart"))

    def _fail(self, error: QuirksError) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # looked at: nobody may be waiting

    async def _stop(self, why: str) -> None:
        watching, self._watching = self._watching, []
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        self._fail(RankError(why))
        self._refits.drop_sender()
        await self._ranks.end(_STOP_S if watching else 0)  # without watchers they were still starting
        self._failure = None

    async def _generate(
        self, method: str, rows: Mapping[int, list[int]], stop: Sequence[str], greedy: bool, rank: int | None
    ) -> AsyncGenerator[Any, None]:
        """Shares prompts out and yields what comes, from whichever engine; leaving early ends the rest everywhere."""
        ranks, router = self._ranks.all, self._router
        pinned = rank if len(ranks) == 1 else None  # to a rank of the one engine
        shares = router.share(rows, None if rank is None or len(ranks) == 1 else rank)
        coming: asyncio.Queue[Any] = asyncio.Queue()

        async def follow(number: int, share: dict[int, list[int]]) -> None:
            left = len(share)
            try:
                async with aclosing(ranks[number].stream(method, share, list(stop), greedy, pinned)) as items:
                    async for item in items:
                        left -= 1
                        router.done(number)
                        coming.put_nowait(item)
                coming.put_nowait(_END)
            except QuirksError as error:
                coming.put_nowait(error)
            finally:
                router.done(number, left)

        following = [asyncio.ensure_future(follow(number, share)) for number, share in shares.items()]
        late, running = [], len(following)
        try:
            while running:
                item = await self._alive(coming.get())
                if item is _END:
                    running -= 1
                elif isinstance(item, GenerationTimeoutError):  # of one rank; the others go on
                    running -= 1
                    late.append(str(item))
                elif isinstance(item, QuirksError):
                    raise item
                else:
                    yield item
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
        if late:
            raise GenerationTimeoutError("; ".join(late))

    async def _everybody(
        self, method: str, *arguments: Any, each: Sequence[tuple[Any, ...]] = (), of_actor: bool = False, **named: Any
    ) -> list[Any]:
        """Calls a method of every worker at the same time; waits for all of them, also if one fails.

        Args:
            method: The worker's method.
            *arguments: The same for all.
            each: Arguments for each, instead.
            of_actor: It is a method of the actor.
            **named: The same for all.
        """
        self._check(None, ready=False)
        calls = [
            rank.call(method, *given, **named) if of_actor else rank.call("call", method, *given, **named)
            for rank, given in zip(self._ranks.all, each or [arguments] * len(self._ranks.all), strict=True)
        ]
        found = await self._alive(asyncio.gather(*calls, return_exceptions=True))
        errors = [item for item in found if isinstance(item, BaseException)]
        if errors:
            raise errors[0]
        return list(found)

    async def _alive(self, work: Any) -> Any:
        """Waits for something as long as every engine lives.

        Raises:
            RankError: One died.
        """
        assert self._failure is not None  # noqa: S101  # `_check` was there before
        failure, task = self._failure, asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, failure), return_when=asyncio.FIRST_COMPLETED)
            if failure.done():
                failure.result()
            return await task
        finally:
            task.cancel()

    def _check(self, rank: int | None, *, ready: bool = True) -> None:
        if self._failure is None or not self._ranks.all:
            raise QuirksError("the group is not running; call start first")
        if self._failure.done():
            self._failure.result()
        count = self.plan.value("engine.data_parallel_size")
        if rank is not None and not 0 <= rank < count:
            raise UsageError(f"rank {rank} does not exist: there are {count}, counted from 0")
        if ready:
            self._refits.check()


def _key(server: ServerSection) -> str | None:
    """The key of all servers, by the rules of one."""
    if not server.enabled or not server.auth:
        return None
    if server.api_key is not None:
        return server.api_key.get_secret_value()
    return os.environ.get("VLLM_API_KEY") or secrets.token_urlsafe(32)


def _with_log(text: str, lines: Sequence[str]) -> str:
    return "\n".join([text, *(f"    {line}" for line in lines)])
