"""A running engine with the trainer beside it: what scenarios are made of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quirks_core.plan import Plan
from worker import vllm_adapter
from worker.async_worker import VllmAsyncGenerationWorker
from worker.batch import Batch, padded
from worker.config import GenerationConfig, SamplingSection
from worker.errors import RefitError
from worker.parity.prompts import Prompts
from worker.parity.records import Sample, Scoring
from worker.readiness import FIRST_VERSION

if TYPE_CHECKING:
    from worker.parity.trainer import Trainer, TrainerOptions

#: The checkpoint's weights, and those that stand for the policy after an optimiser step.
OLD, NEW = "a", "b"
#: Seconds until requests must have made their first tokens.
_UNDER_WAY_S = 120.0

#: Tells the user what comes next.
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Refits:
    """How weights reach the engine.

    Attributes:
        scope: What is sent (``refit.scope``).
        clear_cache: Whether the KV cache is dropped (``refit.clear_cache``).
    """

    scope: str
    clear_cache: bool


class Session:
    """One engine, one trainer, and prompts for both.

    Attributes:
        worker: The running worker.
        trainer: The trainer's model; None if transformers cannot load it, and only the engine is compared with itself.
        trainer_options: How the trainer computes.
        prompts: The prompts.
        sampling: How samples are drawn: as planned, but always as many tokens as were asked for.
        refits: How weights reach the engine; the ladder changes it on a running engine.
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
        """Keeps what every scenario needs.

        Args:
            worker: The worker; it must be running.
            trainer: The trainer's model.
            trainer_options: How the trainer computes; a dtype that is left open becomes the engine's.
            prompts: The prompts.
            new_tokens: Tokens that are generated from each.
            seed: Seed of the samples, each of which has one of its own.
        """
        self.worker = worker
        self.trainer = trainer
        dtype = trainer_options.dtype or vllm_adapter.model_dtype(self.llm)
        self.trainer_options = replace(trainer_options, dtype=dtype)
        self.prompts = prompts
        self.refits = planned_refits(worker.plan)
        self._seed = seed
        planned = vllm_adapter.planned_sampling(worker.config, worker.plan)
        unstopped = {"ignore_eos": True, "stop_strings": (), "stop_token_ids": (), "min_new_tokens": 0}
        self.sampling = planned.model_copy(update={"max_new_tokens": new_tokens, **unstopped})
        self._held: str | None = None if self._dummy else OLD
        self._label = FIRST_VERSION

    @property
    def llm(self) -> Any:
        """VLLM's engine."""
        return self.worker._running().llm

    @property
    def config(self) -> GenerationConfig:
        """The run's configuration."""
        return self.worker.config

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens."""
        return int(self.llm.model_config.max_model_len)

    @property
    def block_size(self) -> int:
        """Tokens that a block of the KV cache holds."""
        return vllm_adapter.block_size(self.llm)

    @property
    def _dummy(self) -> bool:
        return bool(self.worker.plan.value("engine.load_format") == "dummy")

    # ---- weights

    async def hold(self, label: str) -> None:
        """Makes sure that the engine has these weights and nothing in its cache."""
        if self._held != label:
            await self.refit(label, clear_cache=True)
        await self.worker.reset_prefix_cache_async()

    async def refit(self, label: str, *, clear_cache: bool | None = None) -> None:
        """Gives the engine weights.

        Args:
            label: `OLD` or `NEW`.
            clear_cache: Whether the KV cache is dropped; as configured if None.

        Raises:
            RefitError: There is no trainer to send any.
        """
        if self.trainer is None:
            raise RefitError("no trainer's model was loaded, so nothing can be sent to the engine")
        if label == NEW and NEW not in self.trainer.labels:
            await asyncio.to_thread(self.trainer.perturb, NEW)
        self.trainer.use(label)
        self._held = None  # until it is through
        clear = self.refits.clear_cache if clear_cache is None else clear_cache
        await self.worker.refit_async(self.trainer.model, self.refits.scope, version=label, clear_cache=clear)
        self._held = self._label = label

    def forget_weights(self) -> None:
        """The next `hold` sends the weights again, whatever the engine has; after a change of `refits`."""
        if self.trainer is not None:
            self._held = None

    # ---- samples

    async def generate(
        self,
        rows: Sequence[Sequence[int]] | None = None,
        *,
        sampling: SamplingSection | None = None,
        greedy: bool = False,
        rank: int | None = None,
        note: str = "",
    ) -> tuple[list[Sample], int]:
        """Has the engine generate from prompts.

        Args:
            rows: The prompts; all if None.
            sampling: How to sample; as the run does if None.
            greedy: Take the most probable token instead.
            rank: Which of the engine's data-parallel ranks; the engine chooses if None.
            note: The samples' note.

        Returns:
            The samples, and how many of the prompts' tokens came from the prefix cache.
        """
        rows = self.prompts.rows if rows is None else rows
        sampling = sampling or self.sampling
        batch = {**padded(rows), "seeds": [self._seed + index for index in range(len(rows))]}
        found: dict[int, Sample] = {}
        cached = 0
        drawn = not greedy and sampling.temperature > 0
        async for index, output in self.worker.generate_async(batch, greedy=greedy, sampling=sampling, data_parallel_rank=rank):
            found[index] = self._sample(rows[index], output, sampling if drawn else None, note)
            cached += int(output["num_cached_tokens"])
        return [found[index] for index in range(len(rows))], cached

    async def prefilled(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Has the engine compute the logprobs of samples' tokens at once as a prompt, without its prefix cache."""
        found: dict[int, tuple[float, ...]] = {}
        batch = padded([(*sample.prompt, *sample.tokens) for sample in samples])
        async for index, output in self.worker.score_async(batch):
            found[index] = tuple(output["logprobs"][0, len(samples[index].prompt) :].tolist())
        return [found[index] for index in range(len(samples))]

    @asynccontextmanager
    async def under_way(self, rows: Sequence[Sequence[int]], sampling: SamplingSection, tokens: int) -> AsyncIterator[Any]:
        """Gives a task that generates, once every request has made some tokens.

        Args:
            rows: The prompts.
            sampling: How to sample.
            tokens: How many tokens each must have.

        Raises:
            TimeoutError: They took too long.
        """
        task = asyncio.create_task(self.generate(rows, sampling=sampling))
        try:
            async with asyncio.timeout(_UNDER_WAY_S):
                while not task.done():
                    made = vllm_adapter.generated_so_far(self.llm)
                    if len(made) == len(rows) and min(made) >= tokens:
                        break
                    await asyncio.sleep(0.002)
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def scored(self, samples: Sequence[Sample]) -> list[Sample]:
        """Has the trainer compute the logprobs of exactly these tokens.

        Raises:
            RefitError: There is no trainer.
        """
        if self.trainer is None:
            raise RefitError("no trainer's model was loaded, so nothing can be scored")
        return await asyncio.to_thread(self.trainer.score, samples, self.trainer_options)

    def _sample(self, prompt: Sequence[int], output: Batch, drawn: SamplingSection | None, note: str) -> Sample:
        new = slice(len(prompt), None)
        spans = output["weight_versions"][0]
        # An engine that was not refitted yet has loaded the checkpoint's.
        weights = tuple((OLD if label == FIRST_VERSION else label, start, end) for label, start, end in spans)
        scoring = Scoring(weights=weights)
        if drawn is not None:
            kept = {"temperature": drawn.temperature, "top_p": drawn.top_p, "top_k": drawn.top_k}
            scoring = Scoring(**kept, weights=weights)
        return Sample(
            prompt=tuple(prompt),
            tokens=tuple(output["output_ids"][0, new].tolist()),
            rollout=tuple(output["logprobs"][0, new].tolist()),
            scoring=scoring,
            note=note,
        )


def planned_refits(plan: Plan) -> Refits:
    """Returns how a plan wants weights sent."""
    return Refits(plan.value("refit.scope"), bool(plan.value("refit.clear_cache")))


@asynccontextmanager
async def running(worker: VllmAsyncGenerationWorker) -> AsyncIterator[VllmAsyncGenerationWorker]:
    """Starts a worker's engine and shuts it down whatever happens."""
    try:
        await worker.post_init_async()
        yield worker
    finally:
        await worker.shutdown()
