"""Generation through the worker beside a bare engine: 256 requests of 128 + 256 tokens, a model of the Qwen3-1.7B shape.

    python benchmarks/generation.py            a table; needs a GPU
    python benchmarks/generation.py --json     the same as JSON

The worker's requests take turns with the shortest loop that asks the same of the worker's engine: what our code costs. Then
comes an engine with vLLM's own defaults and no plan: what the plan costs. CUDA graphs are on in both.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import measure
import rollouts

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")

REQUESTS, PROMPT, NEW, VOCABULARY = 256, 128, 256, 150_000
_notes: list[str] = []


async def everything(folder: Path, rounds: int) -> list[measure.Row]:
    """All rows."""
    import torch

    from worker import VllmAsyncGenerationWorker

    prompts = rollouts.prompts(REQUESTS, PROMPT, VOCABULARY)
    batch = {"input_ids": torch.tensor(prompts), "input_lengths": torch.full((REQUESTS,), PROMPT)}
    engine = {"dtype": "bfloat16", "max_model_len": 1024, "gpu_memory_utilization": 0.5}
    config = {
        "model": str(folder),
        "engine": {**engine, "generate_from_dummy": True, "vllm_kwargs": {"skip_tokenizer_init": True}},
        "sampling": {"max_new_tokens": NEW, "ignore_eos": True},
    }
    times: dict[str, list[float]] = {}

    async def timed(name: str, call: Any) -> None:
        start = time.perf_counter()
        tokens = await call
        times.setdefault(name, []).append((time.perf_counter() - start) * 1e3)
        print(f"{name}: {times[name][-1]:.0f} ms", file=sys.stderr)
        if tokens != REQUESTS * NEW:
            _notes.append(f"{name}: {tokens} tokens instead of {REQUESTS * NEW}")

    worker = VllmAsyncGenerationWorker(config)
    try:
        await worker.post_init_async()
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        cheap = SamplingParams(
            max_tokens=NEW,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        for _ in range(rounds + 1):
            await timed("worker", rollouts.worker_batch(worker, batch))
            await worker.reset_prefix_cache_async()
            await timed("the same requests to the worker's engine", rollouts.bare_batch(worker.engine.llm, prompts, cheap))
            await worker.reset_prefix_cache_async()
    finally:
        await worker.shutdown()

    llm = rollouts.bare_engine(folder, **engine)
    usual = SamplingParams(max_tokens=NEW, ignore_eos=True, logprobs=0, detokenize=False)
    plain = SamplingParams(max_tokens=NEW, ignore_eos=True, detokenize=False)
    try:
        for _ in range(rounds + 1):
            for name, params in (
                ("as cheap requests", cheap),
                ("usual requests, with logprobs", usual),
                ("usual requests, without", plain),
            ):
                await timed(f"bare engine, {name}", rollouts.bare_batch(llm, prompts, params))
                await llm.reset_prefix_cache()
    finally:
        llm.shutdown()
    found = []
    base = statistics.median(times["bare engine, as cheap requests"][1:])
    for name, values in times.items():
        median = statistics.median(values[1:])
        rate = REQUESTS * NEW / median * 1e3
        found.append(
            measure.Row(
                f"{name}: {rate:,.0f} tokens/s",
                min(values[1:]),
                median,
                len(values) - 1,
                median / base,
                "bare engine, as cheap requests",
            )
        )
    return found


def measured(rounds: int) -> Iterable[measure.Row]:
    """All rows."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(everything(measure.qwen3(Path(folder), "1.7B"), rounds))


if __name__ == "__main__":
    import torch

    if not torch.cuda.is_available():
        print("benchmarks/generation.py: needs a GPU; its last figures are in docs/performance.md")
        sys.exit(0)
    sys.exit(measure.main(__doc__, measured, rounds=4, notes=lambda: _notes))
