"""Reference logprobs: those of an engine that loaded the checkpoint, on its own greedy continuations."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from quirks_core.configuration.config import SamplingSection
from worker.engine import vllm_adapter
from worker.lab.audit.records import Logits
from worker.lab.kit.lab import generated
from worker.lab.parity.session import prefilled

if TYPE_CHECKING:
    from worker.async_worker import VllmAsyncGenerationWorker

#: Number of prompts, tokens of each, and greedy tokens generated from each.
_PROMPTS, _PROMPT_TOKENS, _NEW_TOKENS = 4, 24, 16
#: Largest difference between logprobs of equal weights, in nats, by dtype; kernels and batches are the same.
_TOLERANCE = {"float32": 1e-3}
_COARSE = 2e-2


class Logprobs:
    """Tokens with their logprobs from an engine that loaded the checkpoint; false before `take`.

    Attributes:
        rows: Token ids of each sequence.
        expected: The logprob of every token except the first of each sequence.
    """

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.expected: list[float] = []

    def __bool__(self) -> bool:
        return bool(self.rows)

    async def take(self, worker: VllmAsyncGenerationWorker, vocab_size: int) -> None:
        """Has the engine continue prompts of random tokens greedily, and score all of it."""
        draw = random.Random(0)  # noqa: S311  # the same prompts every time
        longest = worker.engine.llm.model_config.max_model_len - 1
        length = max(1, min(_PROMPT_TOKENS, longest - _NEW_TOKENS))
        plain = range(vocab_size // 8, vocab_size // 2)  # special tokens and placeholders are at the ends
        prompts = [[draw.choice(plain) for _ in range(length)] for _ in range(_PROMPTS)]
        sampling = SamplingSection(max_new_tokens=min(_NEW_TOKENS, max(1, longest - length)), ignore_eos=True)
        for prompt in prompts:
            (row,) = await generated(worker, [prompt], greedy=True, sampling=sampling)
            self.rows.append([*prompt, *row.tokens])
        self.expected = await self._score(worker)

    async def compare(self, worker: VllmAsyncGenerationWorker) -> Logits:
        """Compares the logprobs of another engine for the same tokens."""
        dtype = vllm_adapter.model_dtype(worker.engine.llm)
        return Logits.of(await self._score(worker), self.expected, _TOLERANCE.get(dtype, _COARSE))

    async def _score(self, worker: VllmAsyncGenerationWorker) -> list[float]:
        # One by one: other batches may mean other kernels.
        return [value for row in self.rows for values in await prefilled(worker, [(row[:1], row[1:])]) for value in values]
