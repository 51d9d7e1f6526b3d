"""What the benchmarks of rollouts share: prompts, a bare engine, the shortest loop over it, and the worker."""

from __future__ import annotations

import asyncio
import random
import uuid
from pathlib import Path
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


def bare_engine(model: Path | str, **arguments: Any) -> Any:
    """Starts an engine with dummy weights, no plan and vLLM's own defaults, those of ``LLM`` for the size of a step."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    fixed = {"load_format": "dummy", "skip_tokenizer_init": True, "disable_log_stats": True}
    given = AsyncEngineArgs(model=str(model), **fixed, **arguments)
    return AsyncLLM.from_engine_args(given, usage_context=UsageContext.LLM_CLASS)


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
