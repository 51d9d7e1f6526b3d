"""The generation worker that a trainer holds: one vLLM engine with its quirks applied and proven."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from quirks_core.errors import QuirksError
from quirks_core.plan import Plan
from quirks_core.receipt import Receipt
from quirks_core.switches import Wishes
from worker import vllm_adapter
from worker.batch import Batch, prompts, scores, seeds, stop_strings
from worker.config import GenerationConfig, SamplingSection
from worker.engine import Engine
from worker.errors import BatchError, SleepError
from worker.generation import Requests
from worker.launch import Bundles, prepare
from worker.place import Place
from worker.refit.manifest import Manifest
from worker.refit.scope import RefitScope
from worker.refitting import Refitting
from worker.topology import Expected, Topology

if TYPE_CHECKING:
    import torch
    from fastapi import FastAPI

    from worker.server import OpenAIServer


class VllmAsyncGenerationWorker:
    """Generates with one vLLM engine, and takes new weights from a trainer between two optimiser steps.

    Making the worker resolves the plan, so a configuration that is refused fails here, before any engine starts;
    `post_init_async` starts the engine. All calls must come from one event loop::

        worker = VllmAsyncGenerationWorker(config)
        await worker.post_init_async()
        async for index, output in worker.generate_async(batch):
            ...
        await worker.refit_async(policy)
        await worker.shutdown()

    Attributes:
        config: The configuration.
        plan: What applies and why.
        warnings: What the user should know: the plan's warnings, those of putting it into force, those of refits.
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
        place: Place | None = None,
    ) -> None:
        """Resolves the plan.

        Args:
            config: The configuration, or a nested mapping of one.
            bundle_indices: Bundles of the current Ray placement group that belong to this worker; also ``(node, bundles)``.
            fraction_of_gpus: Share of a GPU that each engine process takes, in (0, 1].
            seed: Seed of the engine. Replicas that share nothing need different ones, or they sample the same from the same
                prompts. If None it is the configuration's, else one made of the bundles, else the engine's.
            disable: Names to turn off: quirks, flags, ``distribution:NAME``, ``third-party``, ``all``. Stronger than
                environment and configuration.
            force: Names to turn on, whatever their match and version ranges say.
            place: The worker's place in a `worker.WorkerGroup`, which gives it; alone it owns all its data-parallel ranks.

        Raises:
            UsageError: Something in the configuration is wrong.
            RefusedError: The configuration cannot work; the error lists all reasons.
            LockError: The loaded quirks are not those of the lock file.
            BrokenPluginsError: There are broken plugins, and MODEL_QUIRKS_STRICT is 1.
        """
        launch = prepare(config, bundle_indices, fraction_of_gpus, seed, Wishes(disable, force), place)
        self.config: GenerationConfig = launch.config
        self.plan: Plan = launch.plan
        self.warnings: list[str] = list(launch.plan.warnings)
        self._launch = launch
        self._place = place
        self._engine: Engine | None = None
        self._receipt: Receipt | None = None
        self._topology: Topology | None = None
        self._requests: Requests | None = None
        self._refitting: Refitting | None = None
        self._server: OpenAIServer | None = None

    # ---- start and stop

    @property
    def receipt(self) -> Receipt:
        """What every process of the engine has; there from `post_init_async` on, also after `shutdown`.

        Raises:
            QuirksError: The engine has not been started.
        """
        if self._receipt is None:
            raise QuirksError("there is no receipt before the engine runs; call post_init_async first")
        return self._receipt

    @property
    def topology(self) -> Topology:
        """Which parallel ranks the engine's processes are and which experts each of them holds; there once the engine runs.

        Raises:
            QuirksError: The engine has not been started, or its workers do not report (``worker_extension_cls``).
        """
        if self._topology is None:
            raise QuirksError("there is no topology: the engine has not been started, or has a worker_extension_cls of its own")
        return self._topology

    async def post_init_async(self) -> None:
        """Starts the engine and, if ``server.enabled``, the OpenAI-compatible server.

        The event loop stands still until the engine is up: 20 to 60 s on two CPU cores.

        Raises:
            EngineStartError: The engine died; its last error lines are in the message, the active quirks in the notes.
            ReceiptError: A process does not carry out the plan, or the engine changed a value that a quirk set.
            TopologyError: The engine formed other parallel groups than the plan says.
            ServerStartError: The server cannot listen.
        """
        if self._engine is not None:
            raise QuirksError("the engine is running already; call post_init_async once")
        await self._create_engine(self._launch.arguments)
        if self.config.server.enabled:
            try:
                await self._setup_vllm_server()
            except BaseException:
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
        self._engine, self._receipt = engine, engine.receipt
        sampling = vllm_adapter.planned_sampling(self.config, self.plan)
        self._requests = Requests(engine, sampling, self.plan.value("request.timeout_s"))
        self._refitting = Refitting(engine, self.config.refit, self.plan, self._abort, self._warn)
        self.warnings += [text for text in engine.warnings if text not in self.warnings]
        if engine.receipt is not None:
            self.warnings += self._launch.registry.observe(self.plan, engine.receipt)

    async def shutdown(self) -> bool:
        """Stops server and engine, ends every process that was started and takes the plan out of force; may be called again.

        What is still being generated ends with `GenerationAbortedError`.
        """
        requests, self._requests = self._requests, None
        refitting, self._refitting = self._refitting, None
        server, self._server = self._server, None
        engine, self._engine = self._engine, None
        try:
            if requests is not None:
                await requests.close("the worker was shut down")
            if server is not None:
                await server.stop()
        finally:
            if refitting is not None:
                refitting.give_up()
            if engine is not None:
                await engine.stop()
            if refitting is not None:
                await refitting.close()
        return True

    async def restart_async(self) -> None:
        """Starts a new engine in place of one that died or was left with weights of two versions.

        An engine that starts from dummy weights does not generate before the next refit. What was announced of refits stays
        so. A collective has to be joined anew; the server gets a new port, and a new key unless one is configured.

        Raises:
            EngineStartError: As for `post_init_async`.
        """
        announced = self._refitting.announced if self._refitting is not None else None
        await self.shutdown()
        await self.post_init_async()
        self._refits().announced = announced
        if self.plan.value("engine.load_format") == "dummy":
            self._running().readiness.broken("the engine was restarted from dummy weights; refit before generating")

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

        Leaving the loop early aborts what is still running.

        Args:
            data: ``input_ids`` [B, S] int64, padded on the right; ``input_lengths`` [B] int64; optionally ``stop_strings``, for
                each row None or a list of texts: together with the configured ones they end every sample of the batch; and
                ``seeds`` [B], an integer for each sample, which then does not depend on what else is generated beside it.
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
        rows = self._fitting(data, room=0)
        stop = stop_strings(data, len(rows), (sampling or self.config.sampling).stop_strings)
        options: dict[str, Any] = {"seeds": seeds(data, len(rows)), "sampling": sampling, "rank": data_parallel_rank}
        async with aclosing(self._ready().samples(dict(enumerate(rows)), stop, greedy=greedy, **options)) as samples:
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
            ``(original_index, {"logprobs": [1, length] float32})``: logprobs of softmax(logits), at temperature 1, whatever
            is configured; 0.0 for the first token, which nothing comes before.

        Raises:
            BatchError, NotReadyError, GenerationTimeoutError, GenerationAbortedError, EngineDiedError: As for `generate_async`.
        """
        rows = self._fitting(data, room=1)
        async with aclosing(self._ready().scores(dict(enumerate(rows)), rank=data_parallel_rank)) as scored:
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
        texts = data.get("prompts")
        if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise BatchError("batch: 'prompts' must be a list of texts")
        llm = self._running().llm
        longest = llm.model_config.max_model_len
        rows = [list(llm.get_tokenizer().encode(text)) for text in texts]
        if wrong := [index for index, row in enumerate(rows) if not 0 < len(row) < longest]:
            raise BatchError(f"batch: prompts {wrong} are empty or leave no room below engine.max_model_len = {longest}")
        stop = stop_strings(data, len(rows), self.config.sampling.stop_strings)
        async with aclosing(self._ready().texts(dict(enumerate(rows)), stop, greedy=greedy)) as finished:
            async for index, text in finished:
                yield index, {"texts": [text]}

    def _fitting(self, data: Mapping[str, Any], *, room: int) -> list[list[int]]:
        """Returns the rows of a batch, if all fit the context and leave room for so many tokens."""
        rows = prompts(data)
        longest = self._running().llm.model_config.max_model_len
        if too_long := [index for index, row in enumerate(rows) if len(row) + room > longest]:
            spare = f", with room for {room} more" if room else ""
            raise BatchError(f"batch: rows {too_long} are longer than engine.max_model_len = {longest}{spare}")
        return rows

    # ---- refit

    async def prepare_refit_info_async(self, state_dict_info: Mapping[str, Any]) -> None:
        """Announces what every refit from now on will send; one that sends anything else is rejected.

        Args:
            state_dict_info: ``{name: (shape, dtype)}`` of every tensor, with a checkpoint's names and full shapes: parameters,
                and persistent buffers if the plan's ``refit.scope`` is ``state_dict``.

        Raises:
            RefitRejectedError: It does not have that form.
        """
        self._refits().announced = Manifest.parse(state_dict_info)

    async def report_refit_addresses_async(self) -> list[str]:
        """Returns the path of every engine process' socket, in the order of their ranks; a sender connects to all of them."""
        return await self._refits().addresses()

    async def update_weights_via_ipc_zmq_async(self, version: str | None = None, clear_cache: bool | None = None) -> bool:
        """Takes new weights from trainers that run `worker.refit.send_ipc_zmq` on this machine.

        Generation pauses meanwhile; requests in flight are kept and go on under the new weights.

        Args:
            version: Label of the new weights; a running number if None.
            clear_cache: Drop the KV cache, so that requests in flight are computed anew; ``refit.clear_cache`` if None.

        Returns:
            True.

        Raises:
            RefitRejectedError: What comes is not what was announced; the engine keeps the weights it had.
            RefitError: The transfer failed; the message says whether the engine still has the weights it had. If not, it does
                not generate until a complete refit or `restart_async`.
            EngineDiedError: A process of the engine died.
        """
        return await self._refits().by_ipc_zmq(version=version, clear_cache=clear_cache)

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
            RefitError: Not all came within ``refit.timeout_s``.
        """
        await self._refits().join(rank_prefix, ip, port, world_size, train_world_size)

    async def update_weights_from_collective_async(self, version: str | None = None, clear_cache: bool | None = None) -> bool:
        """Takes new weights from the group; arguments, result and errors as for `update_weights_via_ipc_zmq_async`."""
        return await self._refits().by_collective(version=version, clear_cache=clear_cache)

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
            scope: What to send; what the plan says (``refit.scope``) if None.
            version: Label of the new weights; a running number if None.
            clear_cache: As for `update_weights_via_ipc_zmq_async`.

        Raises:
            RefitRejectedError, RefitError, EngineDiedError: As for `update_weights_via_ipc_zmq_async`.
        """
        await self._refits().from_model(model, scope, version=version, clear_cache=clear_cache)

    async def verify_refit_async(
        self, model: torch.nn.Module | None = None, scope: RefitScope | str | None = None
    ) -> dict[str, str]:
        """Compares what the engine holds, fused, sharded and packed as it is, with what the trainer sends.

        Every engine process receives the weights once more, into a second model, so there must be room for one.

        Args:
            model: The trainer's model, if it is in this process. Without, the trainer has to send as for the last refit.
            scope: As for `refit_async`.

        Returns:
            For each of the engine's tensors that differs, what is different about it; empty if the engine is right.

        Raises:
            RefitError: The transfer failed, or there is no room; the engine's weights are as they were.
        """
        return await self._refits().verify(model, scope)

    # ---- pause

    async def pause_async(self, mode: str = "keep", clear_cache: bool = False) -> None:
        """Stops generation until `resume_async`; new requests wait. A refit meanwhile leaves the engine paused.

        Args:
            mode: What becomes of requests in flight: ``keep`` freezes them, ``wait`` finishes them first, ``abort`` ends them
                with `GenerationAbortedError`.
            clear_cache: Drop the KV cache, so that requests that were frozen are computed anew.

        Raises:
            QuirksError: There is no such mode.
            EngineDiedError: A process of the engine died.
        """
        if mode not in vllm_adapter.PAUSE_MODES:
            raise QuirksError(f"pause_async: mode is one of {', '.join(vllm_adapter.PAUSE_MODES)}, not {mode!r}")
        async with self._running().watched() as llm:
            await vllm_adapter.pause(llm, clear_cache=clear_cache, mode=mode)

    async def resume_async(self) -> None:
        """Lets generation go on."""
        async with self._running().watched() as llm:
            await vllm_adapter.resume(llm)

    # ---- memory

    async def reset_prefix_cache_async(self) -> bool:
        """Forgets the KV cache of past requests.

        Returns:
            False if the engine could not, because requests are running that use it.
        """
        async with self._running().watched() as llm:
            return bool(await llm.reset_prefix_cache())

    async def sleep_async(self, level: int = 1) -> None:
        """Gives the GPU's memory back: the KV cache, and the weights, which level 1 keeps on the host and level 2 drops.

        What is still being generated is aborted. After level 2 the engine does not generate before a complete refit.

        Raises:
            SleepError: The engine cannot sleep: it runs on the CPU, or without ``engine.enable_sleep_mode``.
        """
        engine = self._running()
        if self.plan.context.platform == "cpu":
            raise SleepError("sleep_async: vLLM's CPU platform cannot give memory back; call shutdown instead")
        if not self._launch.arguments.get("enable_sleep_mode"):
            raise SleepError("sleep_async: the engine was started without engine.enable_sleep_mode: true")
        if level not in (1, 2):
            raise SleepError(f"sleep_async: level is 1 (weights to the host) or 2 (weights dropped), not {level!r}")
        self._abort("the engine was put to sleep")
        async with engine.watched() as llm:
            await vllm_adapter.sleep(llm, level)
        engine.readiness.slept(level)

    async def wake_up_async(self, **kwargs: Any) -> None:
        """Takes memory again.

        Args:
            **kwargs: ``tags``: a list of ``weights`` and ``kv_cache``; both if missing. Around a refit wake the weights first,
                refit, then wake the KV cache: the trainer's copy and the cache need not fit together.

        Raises:
            SleepError: A tag is unknown, or the engine does not sleep.
        """
        engine = self._running()
        if unknown := sorted(kwargs.keys() - {"tags"}):
            raise SleepError(f"wake_up_async takes tags, not {', '.join(unknown)}")
        tags = engine.readiness.checked_tags(kwargs.get("tags"))
        async with engine.watched() as llm:
            await vllm_adapter.wake_up(llm, tags)
        engine.readiness.woke(tags)

    async def report_device_id_async(self) -> list[str]:
        """Returns the GPU's UUID of every engine process in the order of their ranks; ``cpu`` on the CPU."""
        async with self._running().watched() as llm:
            return await vllm_adapter.device_ids(llm)

    # ---- OpenAI-compatible server

    async def report_dp_openai_server_base_url(self) -> str | None:
        """Returns ``http://host:port/v1``, None if there is no server (``server.enabled``)."""
        return None if self._server is None else self._server.base_url

    @property
    def openai_api_key(self) -> str | None:
        """The bearer key that the server asks for; None if it asks for none or there is no server."""
        return None if self._server is None else self._server.api_key

    def _setup_vllm_openai_api_server(self, app: FastAPI) -> FastAPI:
        """Adds the server's routes to an application of the caller's, who then guards and serves it."""
        self._openai_server().add_routes(app)
        return app

    async def _setup_vllm_server(self) -> str:
        """Starts the server in this event loop; returns its base URL."""
        server = self._openai_server()
        await server.start()
        self._server = server
        self.warnings += [text for text in server.warnings if text not in self.warnings]
        return server.base_url

    def _openai_server(self) -> OpenAIServer:
        from worker.server import OpenAIServer

        engine = self._running()
        sampling = vllm_adapter.planned_sampling(self.config, self.plan)
        return OpenAIServer(engine.llm, self.config, sampling, check=engine.readiness.check)

    # ---- parts

    async def _prove(self, engine: Engine) -> Topology | None:
        """Has every process say which parallel ranks it is, and compares that with the plan."""
        if not engine.reports:
            return None
        async with engine.watched() as llm:
            found = Topology.of(await vllm_adapter.topology(llm), engine=0 if self._place is None else self._place.rank)
        found.check(Expected.of(self.plan), whole=self._place is None or self._place.engines == 1)
        return found

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def _abort(self, why: str) -> None:
        """Ends every request, from here and over HTTP."""
        if self._requests is not None:
            self._requests.abort(why)
        if self._server is not None:
            self._server.abort(why)

    def _running(self) -> Engine:
        if self._engine is None:
            raise QuirksError("the engine is not running; call post_init_async first")
        return self._engine

    def _ready(self) -> Requests:
        """The way to tokens, if they may be made now."""
        self._running().readiness.check()
        assert self._requests is not None  # noqa: S101  # they are made together
        return self._requests

    def _refits(self) -> Refitting:
        self._running()
        assert self._refitting is not None  # noqa: S101  # they are made together
        return self._refitting
