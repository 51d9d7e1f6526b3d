"""The generation worker of a trainer: one vLLM engine with its quirks applied and verified."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from quirks_core.ledger.account import Verdict
from worker.batch import Batch, check_lengths, prompts, scores
from worker.calls import Calls
from worker.engine import vllm_adapter
from worker.engine.readiness import KV_CACHE, WEIGHTS
from worker.errors import SleepError
from worker.reference import ReferenceCalls
from worker.refit.refitting import RefitReport, Refitting
from worker.refit.weights.manifest import Manifest


class VllmAsyncGenerationWorker(Calls, ReferenceCalls):
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

    async def wake_up_async(self, **kwargs: Any) -> None:
        """Allocates the memory again; of an engine that is awake, nothing.

        Args:
            **kwargs: ``tags``: a list of ``weights`` and ``kv_cache``; both if missing. For a refit wake the weights, refit,
                then wake the KV cache, so that the trainer's copy and the cache need not fit into memory together.

        Raises:
            SleepError: A tag is unknown.
        """
        engine = self.engine
        if unknown := sorted(kwargs.keys() - {"tags"}):
            raise SleepError(f"wake_up_async takes tags, not {', '.join(unknown)}")
        tags = kwargs.get("tags")
        if isinstance(tags, str) or set(tags or ()) - {WEIGHTS, KV_CACHE}:
            raise SleepError(f"wake_up_async: tags are a list of {WEIGHTS!r} and {KV_CACHE!r}, not {tags!r}")

        async def wake_up(llm: Any) -> None:
            if engine.readiness.asleep:  # vLLM would resume an engine that is paused and awake
                await llm.wake_up(tags=None if tags is None else list(tags))
                engine.readiness.woke(tags)

        await self.refitting.between(wake_up)

    async def report_device_id_async(self) -> list[str]:
        """Returns the GPU's UUID of every engine process in the order of their ranks; ``cpu`` on the CPU."""
        return [row.device for row in self.topology.rows]
