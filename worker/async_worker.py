"""The generation worker of a trainer: one vLLM engine with its quirks applied and verified."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quirks_core.base.errors import QuirksError
from quirks_core.configuration.config import GenerationConfig
from quirks_core.configuration.sections import SamplingSection
from quirks_core.ledger.account import Verdict
from quirks_core.plan.receipt import Receipt
from quirks_core.plan.records import Plan
from quirks_core.plan.summary import messages
from quirks_core.plan.switches import SwitchNames
from quirks_core.plugins.planning import PlanOptions
from worker.batch import Batch, check_encoded, check_lengths, prompts, scores, seeds, stop_strings, texts
from worker.engine import vllm_adapter
from worker.engine.engine import Engine
from worker.engine.engine_rank import EngineRank
from worker.engine.topology import Expected, Topology, read_topology
from worker.errors import SleepError
from worker.generation import Requests
from worker.launch import Bundles, parsed, prepare, sampling_warnings
from worker.refit.refitting import RefitReport, Refitting
from worker.refit.weights.manifest import Manifest
from worker.refit.weights.scope import RefitScope

if TYPE_CHECKING:
    import torch
    from fastapi import FastAPI

    from worker.server import Listener, OpenAIServer


@dataclass(slots=True)
class _Running:
    """The parts that exist while an engine runs."""

    engine: Engine
    requests: Requests
    refitting: Refitting
    server: OpenAIServer | None = None


class VllmAsyncGenerationWorker:
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
    """

    def __init__(
        self,
        config: GenerationConfig | Mapping[str, Any],
        bundle_indices: Bundles | None = None,
        fraction_of_gpus: float = 1.0,
        seed: int | None = None,
        *,
        disable: Sequence[str] = (),
        force: Sequence[str] = (),
        strict: bool = False,
        locked: str | Path | None = None,
        engine_rank: EngineRank | None = None,
        options: PlanOptions | None = None,
    ) -> None:
        """Resolves the plan.

        Args:
            config: The configuration, or a nested mapping of one.
            bundle_indices: Bundles of the current Ray placement group that belong to this worker; also ``(node, bundles)``.
            fraction_of_gpus: Share of a GPU that each engine process takes, in (0, 1].
            seed: Seed of the engine. Independent replicas need different seeds, or they generate the same samples from the same
                prompts. If None: the configuration's, else one derived from the bundles, else the engine's.
            disable: Names to turn off: quirks, flags, ``distribution:NAME``, ``third-party``, ``all``. Stronger than
                environment and configuration.
            force: Names to turn on, whatever their match and version ranges are.
            strict: Treat a broken plugin as an error, as MODEL_QUIRKS_STRICT=1 does.
            locked: Lock file that the loaded quirks must match. If None: the file that MODEL_QUIRKS_LOCKED or the configuration
                names.
            engine_rank: Which engine of a `worker.WorkerGroup` this is; the group gives it.
            options: Plan options, instead of ``disable``, ``force``, ``strict`` and ``locked``.

        Raises:
            UsageError: Something in the configuration is wrong.
            RefusedError: The configuration cannot work; the error lists all reasons.
            LockError: The loaded quirks are not those of the lock file.
            BrokenPluginsError: There are broken plugins, and `strict` applies.
        """
        config = parsed(config)
        call = SwitchNames(disable, force)
        launch = prepare(
            config,
            options or PlanOptions.gather(config, call=call, strict=strict, locked=locked),
            bundle_indices=bundle_indices,
            fraction_of_gpus=fraction_of_gpus,
            seed=seed,
            engine_rank=engine_rank,
        )
        self.config: GenerationConfig = launch.config
        self.plan: Plan = launch.plan
        self.warnings: list[str] = [*messages(launch.plan), *sampling_warnings(launch.config)]
        self._launch = launch
        self._engine_rank = engine_rank
        self._running: _Running | None = None
        self._listener: Listener | None = None
        self._receipt: Receipt | None = None
        self._topology: Topology | None = None

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

    @property
    def topology(self) -> Topology:
        """The parallel ranks of the engine's processes and the experts that each holds; available once the engine runs.

        Raises:
            QuirksError: The engine has not been started.
        """
        if self._topology is None:
            raise QuirksError("there is no topology: the engine has not been started")
        return self._topology

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
        if self.config.server.enabled:
            from worker.server import Listener

            self._listener = Listener(self.config)  # fails here if the port is in use, not after the engine's start
        try:
            await self._create_engine(self._launch.arguments)
            if self.config.server.enabled:
                await self._setup_vllm_server()
        except BaseException:
            listener, self._listener = self._listener, None
            if listener is not None:
                listener.close()
            await self.shutdown()
            raise

    async def _create_engine(self, llm_kwargs: Mapping[str, Any]) -> None:
        """Starts an engine with these arguments of vLLM's ``AsyncEngineArgs``."""
        engine = Engine(self.plan, llm_kwargs, self._launch.environment)
        await engine.start()
        try:
            self._topology = await self._prove(engine)
        except BaseException:
            await engine.stop()
            raise
        self._receipt = engine.receipt
        self._running = _Running(
            engine,
            Requests(engine, self.config.sampling, self.config.request.timeout_s),
            Refitting(engine, self.config.refit, self.plan, self._abort, self._warn),
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

    async def generate_async(
        self,
        data: Mapping[str, Any],
        greedy: bool = False,
        *,
        sampling: SamplingSection | None = None,
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[tuple[int, Batch], None]:
        """Generates from a batch of prompts; yields each sample as it finishes.

        Leaving the loop early aborts the remaining requests.

        Args:
            data: ``input_ids`` [B, S] int64, padded on the right; ``input_lengths`` [B] int64; optionally ``stop_strings``, for
                each row None or a list of texts: together with the configured ones they end every sample of the batch; and
                ``seeds`` [B], an integer for each sample, which then does not depend on other requests.
            greedy: Take the most probable token instead of sampling.
            sampling: How to sample this batch; as configured and planned if None.
            data_parallel_rank: Which of the engine's own data-parallel ranks generates; the engine chooses if None.

        Yields:
            ``(original_index, output)``; the fields of ``output`` are described at `worker.batch.sample`. A prompt that fills
            the context comes back with a generation length of 0.

        Raises:
            BatchError: The batch does not have that form; nothing was sent.
            NotReadyError: The engine sleeps, or its weights are not those of one policy.
            GenerationTimeoutError: Samples took longer than ``request.timeout_s``; raised after all others were yielded.
            GenerationAbortedError: A refit failed half-way meanwhile, or the worker was shut down.
            EngineDiedError: A process of the engine died.
        """
        rows = prompts(data)
        check_lengths(rows, self._longest)
        stop = stop_strings(data, len(rows), (sampling or self.config.sampling).stop_strings)
        options: dict[str, Any] = {"seeds": seeds(data, len(rows)), "sampling": sampling, "rank": data_parallel_rank}
        async with aclosing(self.requests.samples(dict(enumerate(rows)), stop, greedy=greedy, **options)) as samples:
            async for item in samples:
                yield item

    async def score_async(
        self, data: Mapping[str, Any], *, data_parallel_rank: int | None = None
    ) -> AsyncGenerator[tuple[int, Batch], None]:
        """Computes the logprobs of given tokens, all positions at once as a prompt (prefill); nothing is sampled.

        Args:
            data: ``input_ids`` [B, S] int64, padded on the right; ``input_lengths`` [B] int64. Rows must leave room for one
                token below ``engine.max_model_len``, because vLLM generates one after every prompt.
            data_parallel_rank: As for `generate_async`.

        Yields:
            ``(original_index, {"logprobs": [1, length] float32})``: logprobs of softmax(logits), at temperature 1 regardless of
            the configuration; 0.0 for the first token, which has no context.

        Raises:
            BatchError, NotReadyError, GenerationTimeoutError, GenerationAbortedError, EngineDiedError: As for `generate_async`.
        """
        rows = prompts(data)
        check_lengths(rows, self._longest, room=1)
        async with aclosing(self.requests.scores(dict(enumerate(rows)), rank=data_parallel_rank)) as scored:
            async for index, logprobs in scored:
                yield index, scores(logprobs)

    async def generate_text_async(
        self, data: Mapping[str, Any], greedy: bool = False
    ) -> AsyncGenerator[tuple[int, dict[str, list[str]]], None]:
        """Generates text from a batch of text prompts; yields each sample as it finishes.

        Args:
            data: ``prompts``, B texts; optionally ``stop_strings``, as for `generate_async`.
            greedy: Take the most probable token instead of sampling.

        Yields:
            ``(original_index, {"texts": [text]})``.

        Raises:
            BatchError: The batch does not have that form, or a prompt does not fit; nothing was sent.
            NotReadyError, GenerationTimeoutError, GenerationAbortedError, EngineDiedError: As for `generate_async`.
        """
        tokenizer = self.engine.llm.get_tokenizer()
        special = self.config.tokenizer.add_special_tokens
        rows = [vllm_adapter.encoded(tokenizer, text, special) for text in texts(data)]
        check_encoded(rows, self._longest)
        stop = stop_strings(data, len(rows), self.config.sampling.stop_strings)
        async with aclosing(self.requests.texts(dict(enumerate(rows)), stop, greedy=greedy)) as finished:
            async for index, text in finished:
                yield index, {"texts": [text]}

    @property
    def _longest(self) -> int:
        return int(self.engine.llm.model_config.max_model_len)

    # ---- refit

    async def prepare_refit_info_async(self, state_dict_info: Mapping[str, Any]) -> None:
        """Announces what every refit from now on will send; one that sends anything else is rejected.

        Args:
            state_dict_info: ``{name: (shape, dtype)}`` of every tensor, with a checkpoint's names and full shapes: parameters,
                and persistent buffers if the plan's ``refit.scope`` is ``state_dict``.

        Raises:
            RefitRejectedError: It does not have that form.
        """
        self.refitting.announced = Manifest.parse(state_dict_info)

    async def report_refit_addresses_async(self) -> list[str]:
        """Returns the path of every engine process' socket, in the order of their ranks; a sender connects to all of them."""
        return await self.refitting.addresses()

    async def update_weights_via_ipc_zmq_async(self, version: str | None = None, clear_cache: bool | None = None) -> bool:
        """Takes new weights from trainers that run `worker.refit.send_ipc_zmq` on this machine.

        Generation pauses meanwhile; requests in flight are kept and continue with the new weights.

        Args:
            version: Label of the new weights; a running number if None.
            clear_cache: Drop the KV cache, so that requests in flight are recomputed; ``refit.clear_cache`` if None.

        Returns:
            True.

        Raises:
            RefitRejectedError: The tensors differ from the announcement; the engine keeps the weights it had.
            RefitError: The transfer failed; the message says whether the engine still has the weights it had. If not, it does
                not generate until a complete refit or `restart_async`.
            EngineDiedError: A process of the engine died.
        """
        return await self.refitting.receive("ipc_zmq", version, clear_cache)

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

    async def update_weights_from_collective_async(self, version: str | None = None, clear_cache: bool | None = None) -> bool:
        """Takes new weights from the group; arguments, result and errors as for `update_weights_via_ipc_zmq_async`."""
        return await self.refitting.receive("collective", version, clear_cache)

    async def refit_async(
        self,
        model: torch.nn.Module,
        scope: RefitScope | str | None = None,
        *,
        version: str | None = None,
        clear_cache: bool | None = None,
    ) -> None:
        """Gives the engine the weights of a model in this process, by ``refit.transport``.

        Args:
            model: The trainer's model, with a checkpoint's names.
            scope: What to send; the plan's ``refit.scope`` if None.
            version: Label of the new weights; a running number if None.
            clear_cache: As for `update_weights_via_ipc_zmq_async`.

        Raises:
            RefitRejectedError, RefitError, EngineDiedError: As for `update_weights_via_ipc_zmq_async`.
        """
        await self.refitting.from_model(model, scope, version=version, clear_cache=clear_cache)

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
            QuirksError: There is no such mode.
            EngineDiedError: A process of the engine died.
        """
        if mode not in vllm_adapter.PAUSE_MODES:
            raise QuirksError(f"pause_async: mode is one of {', '.join(vllm_adapter.PAUSE_MODES)}, not {mode!r}")
        await self.refitting.between(vllm_adapter.pause, clear_cache=clear_cache, mode=mode)

    async def resume_async(self) -> None:
        """Resumes generation; during a refit or a pause, after it."""
        await self.refitting.between(vllm_adapter.resume)

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
        if self.plan.context.platform == "cpu":
            raise SleepError("sleep_async: vLLM's CPU platform cannot give memory back; call shutdown instead")
        if not self._launch.arguments.get("enable_sleep_mode"):
            raise SleepError("sleep_async: the engine was started without engine.enable_sleep_mode: true")
        if level not in (1, 2):
            raise SleepError(f"sleep_async: level is 1 (weights to the host) or 2 (weights dropped), not {level!r}")

        async def sleep(llm: Any) -> None:
            await self.refitting.forget(plan=level == 2)
            self._abort("the engine was put to sleep")
            await vllm_adapter.sleep(llm, level)
            engine.readiness.slept(level)

        await self.refitting.between(sleep)

    async def wake_up_async(self, **kwargs: Any) -> None:
        """Allocates the memory again.

        Args:
            **kwargs: ``tags``: a list of ``weights`` and ``kv_cache``; both if missing. For a refit wake the weights, refit,
                then wake the KV cache, so that the trainer's copy and the cache need not fit into memory together.

        Raises:
            SleepError: A tag is unknown, or the engine does not sleep.
        """
        engine = self.engine
        if unknown := sorted(kwargs.keys() - {"tags"}):
            raise SleepError(f"wake_up_async takes tags, not {', '.join(unknown)}")

        async def wake_up(llm: Any) -> None:
            tags = engine.readiness.checked_tags(kwargs.get("tags"))
            await vllm_adapter.wake_up(llm, tags)
            engine.readiness.woke(tags)

        await self.refitting.between(wake_up)

    async def report_device_id_async(self) -> list[str]:
        """Returns the GPU's UUID of every engine process in the order of their ranks; ``cpu`` on the CPU."""
        return await self.refitting.devices()

    # ---- OpenAI-compatible server

    async def report_dp_openai_server_base_url(self) -> str | None:
        """Returns ``http://host:port/v1``, None if there is no server (``server.enabled``)."""
        server = self._server
        return None if server is None else server.base_url

    @property
    def openai_api_key(self) -> str | None:
        """The bearer key that the server requires; None if it requires none or there is no server."""
        server = self._server
        return None if server is None else server.api_key

    @property
    def rl_api_key(self) -> str | None:
        """The key of the server's routes for trainers (``server.rl_routes``); None if there are none."""
        server = self._server
        return None if server is None else server.rl_api_key

    def _setup_vllm_openai_api_server(self, app: FastAPI) -> FastAPI:
        """Adds the server's routes to the caller's application; the caller is responsible for access control and serving."""
        self._openai_server().add_routes(app)
        return app

    async def _setup_vllm_server(self) -> str:
        """Starts the server in this event loop; returns its base URL."""
        server = self._openai_server(self._listener)
        self._listener = None
        await server.start()
        self._parts.server = server
        self._warn(*server.warnings)
        return server.base_url

    def _openai_server(self, listener: Listener | None = None) -> OpenAIServer:
        from worker.server import OpenAIServer
        from worker.server.trainer_client import TrainerClient

        engine = self.engine
        return OpenAIServer(
            engine.llm,
            self.config,
            check=engine.readiness.check,
            watched=engine.watched,
            listener=listener,
            trainer=TrainerClient(self),
        )

    # ---- parts

    async def _prove(self, engine: Engine) -> Topology:
        """Reads the parallel ranks of every process and compares them with the plan."""
        place = self._engine_rank or EngineRank("engine")
        found = Topology.of(await engine.call(read_topology), engine=place.rank)
        found.check(Expected.of(self.plan), whole=place.engines == 1)
        return found

    def _warn(self, *texts: str) -> None:
        self.warnings += [text for text in texts if text not in self.warnings]

    def _abort(self, why: str) -> None:
        """Aborts every request of this process and of HTTP clients."""
        if self._running is not None:
            self._running.requests.abort(why)
            if self._running.server is not None:
                self._running.server.abort(why)

    @property
    def _server(self) -> OpenAIServer | None:
        return None if self._running is None else self._running.server

    @property
    def _parts(self) -> _Running:
        if self._running is None:
            raise QuirksError("the engine is not running; call post_init_async first")
        return self._running
