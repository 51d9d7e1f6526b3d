"""A running engine and the trainer, as scenarios use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quirks_core.configuration.sections import SamplingSection
from worker.async_worker import VllmAsyncGenerationWorker
from worker.batch import Batch, padded
from worker.engine import vllm_adapter
from worker.engine.readiness import FIRST_VERSION
from worker.errors import RefitError
from worker.lab.parity.prompts import Prompts
from worker.lab.parity.records import OLD, Sample, Scoring

if TYPE_CHECKING:
    from worker.lab.parity.trainer import Trainer, TrainerOptions

#: Seconds until requests must have made their first tokens.
_UNDER_WAY_S = 120.0


class Session:
    """One engine, one trainer, and prompts for both.

    Attributes:
        trainer: The trainer's model; None if transformers cannot load it, and only the engine is compared with itself.
        trainer_options: How the trainer computes; an unset dtype is the engine's.
        sampling: How samples are drawn: as planned, but always with the requested number of tokens.
    """

    def __init__(
        self,
        worker: VllmAsyncGenerationWorker,
        trainer: Trainer | None,
        trainer_options: TrainerOptions,
        prompts: Prompts,
        *,
        new_tokens: int,
        seed: int,
    ) -> None:
        """Keeps what every scenario needs; the worker must be running, and each sample has a seed, from `seed` on."""
        self.worker = worker
        self.trainer = trainer
        dtype = trainer_options.dtype or vllm_adapter.model_dtype(self.llm)
        self.trainer_options = replace(trainer_options, dtype=dtype)
        self.prompts = prompts
        self._seed = seed
        unstopped = {"ignore_eos": True, "stop_strings": (), "stop_token_ids": (), "min_new_tokens": 0}
        self.sampling = worker.config.sampling.model_copy(update={"max_new_tokens": new_tokens, **unstopped})
        self._held: str | None = None if worker.plan.value("engine.load_format") == "dummy" else OLD

    @property
    def llm(self) -> Any:
        """VLLM's engine."""
        return self.worker.engine.llm

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens."""
        return int(self.llm.model_config.max_model_len)

    @property
    def block_size(self) -> int:
        """Tokens that a block of the KV cache holds."""
        return int(self.llm.vllm_config.cache_config.block_size)

    # ---- weights

    async def hold(self, label: str) -> None:
        """Makes sure that the engine has these weights and nothing in its cache."""
        if self._held != label:
            await self.refit(label, clear_cache=True)
        await self.worker.reset_prefix_cache_async()

    async def refit(self, label: str, *, clear_cache: bool | None = None) -> None:
        """Gives the engine weights, `OLD` or `NEW`; drops the KV cache by `clear_cache`, or else as configured."""
        await asyncio.to_thread(self._own_trainer().use, label)
        self._held = None  # until the refit has succeeded
        await self.worker.refit_async(self._own_trainer().model, version=label, clear_cache=clear_cache)
        self._held = label

    # ---- samples

    async def generate(
        self,
        rows: Sequence[Sequence[int]] | None = None,
        *,
        sampling: SamplingSection | None = None,
        rank: int | None = None,
        note: str = "",
    ) -> tuple[list[Sample], int]:
        """Has the engine generate from prompts, by default from all of them and with the run's sampling.

        Returns:
            The samples, and how many of the prompts' tokens came from the prefix cache.
        """
        rows = self.prompts.rows if rows is None else rows
        sampling = sampling or self.sampling
        batch = {**padded(rows), "seeds": [self._seed + index for index in range(len(rows))]}
        found: dict[int, Sample] = {}
        cached = 0
        async for index, output in self.worker.generate_async(batch, sampling=sampling, data_parallel_rank=rank):
            found[index] = _sample(rows[index], output, sampling, note)
            cached += int(output["num_cached_tokens"])
        return [found[index] for index in range(len(rows))], cached

    @asynccontextmanager
    async def under_way(self, rows: Sequence[Sequence[int]], sampling: SamplingSection, tokens: int) -> AsyncIterator[Any]:
        """Yields a task that generates, once every request has generated this many tokens.

        Raises:
            TimeoutError: They took too long.
        """
        task = asyncio.create_task(self.generate(rows, sampling=sampling))
        try:
            async with asyncio.timeout(_UNDER_WAY_S):
                while not task.done():
                    made = await self.worker.engine.generated_so_far()
                    if len(made) == len(rows) and min(made) >= tokens:
                        break
                    await asyncio.sleep(0.002)
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def scored(self, samples: Sequence[Sample]) -> list[Sample]:
        """Has the trainer compute the logprobs of exactly these tokens."""
        return await asyncio.to_thread(self._own_trainer().score, samples, self.trainer_options)

    def _own_trainer(self) -> Trainer:
        if self.trainer is None:
            raise RefitError("no trainer's model was loaded, so nothing can be sent or scored")
        return self.trainer


def _sample(prompt: Sequence[int], output: Batch, sampling: SamplingSection, note: str) -> Sample:
    new = slice(len(prompt), None)
    spans = output["weight_versions"][0]
    # An engine that was not refitted yet has loaded the checkpoint's.
    weights = tuple((OLD if label == FIRST_VERSION else label, start, end) for label, start, end in spans)
    drawn = sampling.model_dump(include={"temperature", "top_p", "top_k"}) if sampling.temperature > 0 else {}
    return Sample(
        prompt=tuple(prompt),
        tokens=tuple(output["output_ids"][0, new].tolist()),
        rollout=tuple(output["logprobs"][0, new].tolist()),
        scoring=Scoring(**drawn, weights=weights),
        note=note,
    )


async def prefilled(
    worker: VllmAsyncGenerationWorker, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[tuple[float, ...]]:
    """Has an engine compute the logprobs of given tokens at once as a prompt, without its prefix cache.

    Returns:
        Per sequence G logprobs in nats; of one that fills the context all but the last, because vLLM generates a token after
        it.
    """
    longest = int(worker.engine.llm.model_config.max_model_len) - 1
    rows = [(*prompt, *tokens)[:longest] for prompt, tokens in sequences]
    found: dict[int, tuple[float, ...]] = {}
    async for index, output in worker.score_async(padded(rows)):
        found[index] = tuple(output["logprobs"][0, len(sequences[index][0]) :].tolist())
    return [found[index] for index in range(len(rows))]


@asynccontextmanager
async def running(worker: VllmAsyncGenerationWorker) -> AsyncIterator[VllmAsyncGenerationWorker]:
    """Starts a worker's engine and shuts it down in any case."""
    try:
        await worker.post_init_async()
        yield worker
    finally:
        await worker.shutdown()
