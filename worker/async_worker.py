"""The generation worker of a trainer: one vLLM engine with its quirks applied and verified."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quirks_core.base.errors import QuirksError
from quirks_core.configuration.config import GenerationConfig
from quirks_core.ledger.account import Verdict
from quirks_core.plan.receipt import Receipt
from quirks_core.plan.records import Plan
from quirks_core.plan.switches import SwitchNames
from quirks_core.plugins.planning import PlanOptions
from worker.batch import Batch, check_lengths, prompts, scores
from worker.calls import Calls
from worker.engine import vllm_adapter
from worker.engine.engine import Engine
from worker.engine.engine_rank import EngineRank
from worker.engine.readiness import KV_CACHE, WEIGHTS
from worker.engine.topology import Expected, Row, Topology, read_topology
from worker.errors import SleepError
from worker.generation import Requests
from worker.launch import parsed, prepare, warnings
from worker.refit.refitting import RefitReport, Refitting
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.scope import RefitScope
from worker.server.trainer_client import TrainerClient

if TYPE_CHECKING:
    import torch

    from worker.server import Listener, OpenAIServer


@dataclass(slots=True)
class _Running:
    """The parts that exist while an engine runs."""

    engine: Engine
    requests: Requests
    refitting: Refitting
    trainer_client: TrainerClient
    server: OpenAIServer | None = None


class VllmAsyncGenerationWorker(Calls):
    """Generates with one vLLM engine, and takes new weights from a trainer between two optimiser steps.

    The constructor resolves the plan, so a refused configuration fails there, before any engine starts;
    `post_init_async` starts the engine. All calls must come from one event loop::

        worker = VllmAsyncGenerationWorker(config)
        await worker.post_init_async()
        async for index, output in worker.generate_async(batch):
            ...
        await worker.refit_async(policy)
        await worker.shutdown()

    Attributes:
        config: The configuration, with what the plan changes.
        plan: What applies and why.
        warnings: What the user should know: the plan's warnings, those about sampling, those of applying the plan, those of
            refits.
        topology: The parallel ranks of the engine's processes and the experts that each holds; empty before the engine runs.
    """

    def __init__(
        self,
        config: GenerationConfig | Mapping[str, Any],
        bundle_indices: Sequence[int] | None = None,
        fraction_of_gpus: float = 1.0,
        seed: int | None = None,
        extra_env_vars: Sequence[str] | None = None,
        *,
        disable: Sequence[str] = (),
        force: Sequence[str] = (),
        engine_rank: EngineRank | None = None,
        options: PlanOptions | None = None,
    ) -> None:
        """Resolves the plan.

        Args:
            config: The configuration, or a nested mapping of one.
            bundle_indices: Bundles of the current Ray placement group that belong to this worker.
            fraction_of_gpus: Share of a GPU that each engine process takes, in (0, 1].
            seed: Seed of the engine. Independent replicas need different seeds, or they generate the same samples from the same
                prompts. If None: the configuration's, else one derived from the bundles, else the engine's.
            extra_env_vars: Names of variables that the engine's processes in Ray actors get from this one.
            disable: Names to turn off: quirks, flags, ``distribution:NAME``, ``third-party``, ``all``. Stronger than
                environment and configuration.
            force: Names to turn on, whatever their match and version ranges are.
            engine_rank: Which engine of a `worker.WorkerGroup` this is; the group gives it.
            options: Plan options, instead of ``disable`` and ``force``.

        Raises:
            UsageError: Something in the configuration is wrong.
            RefusedError: The configuration cannot work; the error lists all reasons.
            LockError: The loaded quirks are not those of the lock file.
            BrokenPluginsError: There are broken plugins, and MODEL_QUIRKS_STRICT=1 applies.
        """
        config = parsed(config)
        launch = prepare(
            config,
            options or PlanOptions.gather(config, call=SwitchNames(disable, force)),
            bundle_indices=bundle_indices,
            fraction_of_gpus=fraction_of_gpus,
            seed=seed,
            extra_env_vars=extra_env_vars or (),
            engine_rank=engine_rank,
        )
        self.config: GenerationConfig = launch.config
        self.plan: Plan = launch.plan
        self.warnings = warnings(launch.config, launch.plan)
        self._launch = launch
        self._engine_rank = engine_rank
        self._running: _Running | None = None
        self._receipt: Receipt | None = None
        self.topology = Topology(())

    # ---- start and stop

    @property
    def receipt(self) -> Receipt:
        """What every process of the engine acknowledged; available after `post_init_async`, also after `shutdown`.

        Raises:
            QuirksError: The engine has not been started.
        """
        if self._receipt is None:
            raise QuirksError("there is no receipt before the engine runs; call post_init_async first")
        return self._receipt

    @property
    def engine(self) -> Engine:
        """The running engine, for access that the worker's methods do not offer; ``engine.llm`` is vLLM's ``AsyncLLM``.

        Raises:
            QuirksError: The engine does not run.
        """
        return self._parts.engine

    @property
    def requests(self) -> Requests:
        """The requests to the running engine; error as for `engine`."""
        return self._parts.requests

    @property
    def refitting(self) -> Refitting:
        """The refits of the running engine; error as for `engine`."""
        return self._parts.refitting

    async def post_init_async(self) -> None:
        """Starts the engine and, if ``server.enabled``, the OpenAI-compatible server.

        An engine that starts from dummy weights (``engine.load_format``) does not generate before a complete refit, unless
        ``engine.generate_from_dummy`` is set.

        Blocks the event loop until the engine runs: 20 to 60 s on two CPU cores.

        Raises:
            EngineStartError: The engine died; its last error lines are in the message, the active quirks in the notes.
            ReceiptError: A process does not carry out the plan, or the engine changed a value that a quirk set.
            TopologyError: The engine formed other parallel groups than planned.
            ServerStartError: The server cannot listen. If the port is in use, this is raised before the engine starts.
        """
        if self._running is not None:
            raise QuirksError("the engine is running already; call post_init_async once")
        listener: Listener | None = None
        if self.config.server.enabled:
            from worker.server import Listener, OpenAIServer

            listener = Listener(self.config)  # fails here if the port is in use, not after the engine's start
        try:
            await self._create_engine(self._launch.arguments)
            if listener is not None:
                parts = self._parts
                parts.server = OpenAIServer(parts.engine, self.config, parts.trainer_client, listener)
                await parts.server.start()
        except BaseException:
            if listener is not None:
                listener.close()
            await self.shutdown()
            raise

    async def _create_engine(self, llm_kwargs: Mapping[str, Any]) -> None:
        """Starts an engine with these arguments of vLLM's ``AsyncEngineArgs``."""
        engine = Engine(self.plan, llm_kwargs, self._launch.environment)
        await engine.start()
        try:
            place = self._engine_rank
            found = await engine.call(read_topology, 0 if place is None else place.rank)
            self.topology = Topology(tuple(Row(**fields) for fields in found))
            if place is None:  # else the group compares all of its engines
                self.topology.check(Expected.of(self.plan))
        except BaseException:
            await engine.stop()
            raise
        self._receipt = engine.receipt
        devices = [row.device for row in self.topology.rows]
        refitting = Refitting(engine, self.config.refit, self.plan, devices, self._abort, self._warn)
        self._running = _Running(
            engine,
            Requests(
                engine,
                self.config.sampling,
                self.config.request.timeout_s,
                returns_experts=bool(self._launch.arguments.get("enable_return_routed_experts")),
            ),
            refitting,
            TrainerClient(self, engine, refitting, self._warn),
        )
        self._warn(*engine.warnings, *self._launch.registry.observe(self.plan, self.receipt))

    async def shutdown(self) -> bool:
        """Stops server and engine, ends every process that was started and reverts the plan; may be called again.

        Requests in flight end with `GenerationAbortedError`.
        """
        running, self._running = self._running, None
        if running is None:
            return True
        try:
            await running.requests.close("the worker was shut down")
            if running.server is not None:
                await running.server.stop()
        finally:
            running.refitting.give_up()
            await running.engine.stop()
            await running.refitting.close()
        return True

    async def restart_async(self) -> None:
        """Replaces an engine that died, or whose weights mix two versions, by a new one.

        As after `post_init_async`, an engine from dummy weights does not generate before a refit. Announcements of refits stay
        valid. A collective must be joined again; the server gets a new port, and a new key unless one is configured.

        Raises:
            EngineStartError: As for `post_init_async`.
        """
        announced = self._running.refitting.announced if self._running is not None else None
        await self.shutdown()
        await self.post_init_async()
        self.refitting.announced = announced

    # ---- generation

    async def score_async(self, data: Mapping[str, Any]) -> AsyncGenerator[tuple[int, Batch], None]:
        """Computes the logprobs of given tokens, all positions at once as a prompt (prefill); nothing is sampled.

        Args:
            data: ``input_ids`` [B, S] int64, padded on the right; ``input_lengths`` [B] int64. Rows must leave room for one
                token below ``engine.max_model_len``, because vLLM generates one after every prompt.

        Yields:
            ``(original_index, {"logprobs": [1, length] float32})``: logprobs of softmax(logits), at temperature 1 regardless of
            the configuration; 0.0 for the first token, which has no context.

        Raises:
            BatchError, NotReadyError, GenerationTimeoutError, GenerationAbortedError, EngineDiedError: As for `generate_async`.
        """
        rows = prompts(data)
        check_lengths(rows, self._longest, room=1)
        async with aclosing(self._stream("scores", rows, None)) as scored:
            async for index, logprobs in scored:
                yield index, scores(logprobs)

    @property
    def _longest(self) -> int:
        return int(self.engine.llm.model_config.max_model_len)

    async def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        tokenizer, special = self.engine.llm.get_tokenizer(), self.config.tokenizer.add_special_tokens
        return [vllm_adapter.encoded(tokenizer, text, special) for text in texts]

    def _stream(
        self, kind: str, rows: Sequence[list[int]], rank: int | None, *arguments: Any, **options: Any
    ) -> AsyncGenerator[tuple[int, Any], None]:
        found: AsyncGenerator[tuple[int, Any], None] = getattr(self.requests, kind)(
            dict(enumerate(rows)), *arguments, rank=rank, **options
        )
        return found

    # ---- refit

    @property
    def _refits(self) -> Refitting:
        return self.refitting

    async def prepare_refit_info_async(self, state_dict_info: Mapping[str, Any]) -> None:
        """Announces what every refit from now on will send; one that sends anything else is rejected.

        Args:
            state_dict_info: ``{name: (shape, dtype)}`` of every tensor, with a checkpoint's names and full shapes: parameters,
                and persistent buffers if the plan's ``refit.scope`` is ``state_dict``.

        Raises:
            RefitRejectedError: It does not have that form.
        """
        self.refitting.announced = Manifest.parse(state_dict_info)

    async def init_collective_async(
        self, rank_prefix: int, ip: str, port: int, world_size: int, train_world_size: int = 1
    ) -> None:
        """Joins the group that `worker.refit.CollectiveSender` opens: NCCL on GPUs, gloo on the CPU.

        Args:
            rank_prefix: Engine ranks of the replicas before this one.
            ip: Address of trainer rank 0.
            port: Its port.
            world_size: Trainer ranks and engine ranks of all replicas.
            train_world_size: Trainer ranks; they come first.

        Raises:
            RefitError: Not all ranks joined within ``refit.timeout_s``.
        """
        await self.refitting.join(rank_prefix, ip, port, world_size, train_world_size)

    async def verify_refit_async(
        self, model: torch.nn.Module | None = None, scope: RefitScope | str | None = None
    ) -> dict[str, str]:
        """Compares the engine's weights, in their fused, sharded and packed form, with those that the trainer sends.

        Every engine process loads the weights once more into a second model, which needs memory for it.

        Args:
            model: The trainer's model, if it is in this process. If None, the trainer must send the weights as for the last
                refit.
            scope: As for `refit_async`.

        Returns:
            By name of each tensor that differs, how it differs; empty if all are equal.

        Raises:
            RefitError: The transfer failed, or there is not enough memory; the engine's weights are unchanged.
        """
        return await self.refitting.verify(model, scope)

    async def report_updates_async(self, updates: int) -> tuple[Verdict, ...]:
        """Reports how many updates the trainer has made since its start; the ledger warns if the engine's weights are too old.

        Returns:
            What the ledger finds wrong with the weights now; empty with ``MODEL_QUIRKS_LEDGER=off``.

        Raises:
            EngineDiedError: The engine has died.
        """
        return await self.refitting.report_updates(updates)

    @property
    def last_refit(self) -> RefitReport | None:
        """What the last refit of the running engine did with the trainer's tensors; None before one."""
        return self.refitting.report

    # ---- pause

    async def pause_async(self, mode: str = "keep", clear_cache: bool = False) -> None:
        """Stops generation until `resume_async`; new requests wait.

        Pauses, resumes and refits come one after the other, in the order of their calls: a pause during a refit
        takes effect after it, a refit during the pause leaves the engine paused, and one during ``wait`` begins once the
        requests have finished. A call that is cancelled is carried out all the same.

        Args:
            mode: How to treat requests in flight: ``keep`` freezes them, ``wait`` finishes them first, ``abort`` ends them
                with `GenerationAbortedError`.
            clear_cache: Drop the KV cache, so that frozen requests are recomputed.

        Raises:
            EngineDiedError: A process of the engine died.
        """
        await self.refitting.between(lambda llm: llm.pause_generation(mode=mode, clear_cache=clear_cache))

    async def resume_async(self) -> None:
        """Resumes generation; during a refit or a pause, after it."""
        await self.refitting.between(lambda llm: llm.resume_generation())

    # ---- memory

    async def reset_prefix_cache_async(self) -> bool:
        """Drops the KV cache of past requests.

        Returns:
            False if running requests still use it.
        """
        async with self.engine.watched() as llm:
            return bool(await llm.reset_prefix_cache())

    async def sleep_async(self, level: int = 1) -> None:
        """Frees GPU memory: drops the KV cache; level 1 moves the weights to the host, level 2 drops them.

        Requests in flight are aborted. After level 2 the engine does not generate before a complete refit.

        Raises:
            SleepError: The engine cannot sleep: it runs on the CPU, or without ``engine.enable_sleep_mode``.
        """
        engine = self.engine
        if not self._launch.arguments.get("enable_sleep_mode"):
            text = "the engine was started without engine.enable_sleep_mode: true; vLLM's CPU platform cannot give memory back"
            raise SleepError(f"sleep_async: {text}")
        if level not in (1, 2):
            raise SleepError(f"sleep_async: level is 1 (weights to the host) or 2 (weights dropped), not {level!r}")

        async def sleep(llm: Any) -> None:
            await self.refitting.forget(plan=level == 2)
            self._abort("the engine was put to sleep")
            await vllm_adapter.sleep(llm, level)
            engine.readiness.slept(level)

        await self.refitting.between(sleep)

    async def wake_up_async(self, tags: Sequence[str] | None = None) -> None:
        """Allocates the memory again; of an engine that is awake, nothing.

        Args:
            tags: A list of ``weights`` and ``kv_cache``; both if None. For a refit wake the weights, refit, then wake the KV
                cache, so that the trainer's copy and the cache need not fit into memory together.

        Raises:
            SleepError: A tag is unknown.
        """
        engine = self.engine
        if isinstance(tags, str) or set(tags or ()) - {WEIGHTS, KV_CACHE}:
            raise SleepError(f"wake_up_async: tags are a list of {WEIGHTS!r} and {KV_CACHE!r}, not {tags!r}")

        async def wake_up(llm: Any) -> None:
            if engine.readiness.asleep:  # vLLM would resume an engine that is paused and awake
                await llm.wake_up(tags=None if tags is None else list(tags))
                engine.readiness.woke(tags)

        await self.refitting.between(wake_up)

    # ---- OpenAI-compatible server

    async def report_dp_openai_server_base_url(self) -> str | None:
        """Returns ``http://host:port/v1``, None if there is no server (``server.enabled``)."""
        server = self._server
        return None if server is None else server.base_url

    @property
    def openai_api_key(self) -> str | None:
        """The bearer key that the server requires; None if there is no server."""
        server = self._server
        return None if server is None else server.api_key.get_secret_value()

    @property
    def rl_api_key(self) -> str | None:
        """The key of the server's routes for trainers (``server.rl_routes``); None if there are none."""
        key = None if self._server is None else self._server.rl_api_key
        return None if key is None else key.get_secret_value()

    # ---- parts

    def _warn(self, *texts: str) -> None:
        self.warnings += [text for text in texts if text not in self.warnings]

    def _abort(self, why: str) -> None:
        """Aborts every request of this process; those of HTTP clients end with the engine's."""
        if self._running is not None:
            self._running.requests.abort(why)

    @property
    def _server(self) -> OpenAIServer | None:
        return None if self._running is None else self._running.server

    @property
    def _parts(self) -> _Running:
        if self._running is None:
            raise QuirksError("the engine is not running; call post_init_async first")
        return self._running
