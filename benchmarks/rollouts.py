"""What the benchmarks of rollouts share: prompts, the shortest loop over an engine, and the same through the worker."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Any


def prompts(requests: int, length: int, vocabulary: int) -> list[list[int]]:
    """Returns token ids of prompts that share no prefix.

    Args:
        requests: How many.
        length: Tokens of each.
        vocabulary: Ids lie below it.
    """
    chosen = random.Random(0)  # noqa: S311  # prompts, not secrets
    return [[chosen.randrange(10, vocabulary) for _ in range(length)] for _ in range(requests)]


async def bare_batch(llm: Any, rows: list[list[int]], params: Any) -> int:
    """The shortest loop; returns the number of tokens."""

    async def one(row: list[int]) -> int:
        async for output in llm.generate({"prompt_token_ids": row}, params, uuid.uuid4().hex):
            final = output
        return len(final.outputs[0].token_ids)

    return sum(await asyncio.gather(*(one(row) for row in rows)))


async def worker_batch(worker: Any, batch: Any) -> int:
    """The same through the worker."""
    return sum([int(output["generation_lengths"]) async for _, output in worker.generate_async(batch)])
