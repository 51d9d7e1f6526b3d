"""Generation through the worker beside a bare engine: 256 requests of 128 + 256 tokens, a model of the Qwen3-1.7B shape.

    python benchmarks/generation.py            a table; needs a GPU
    python benchmarks/generation.py --json     the same as JSON

Two engines are up at the same time and take turns: the worker's, and one with vLLM's own defaults and no plan. The shortest
loop asks of the worker's engine what the worker asks, which shows what our code costs; of the other engine it asks the same and
what others ask. CUDA graphs are on in both. Both have this process as their front end, with the worker's patches in it; outputs
of a single token, which the other engine sends, go through them unchanged.
"""

from __future__ import annotations

import asyncio
import os
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
_BASE = "bare engine, usual requests, without logprobs"
_notes: list[str] = []


async def everything(folder: Path, rounds: int) -> list[measure.Row]:
    """All rows."""
    import torch

    from worker import VllmAsyncGenerationWorker
    from worker.engine import vllm_adapter

    prompts = rollouts.prompts(REQUESTS, PROMPT, VOCABULARY)
    batch = {"input_ids": torch.tensor(prompts), "input_lengths": torch.full((REQUESTS,), PROMPT)}
    engine = {"dtype": "bfloat16", "max_model_len": 1024, "gpu_memory_utilization": 0.4}
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

    bare = rollouts.bare_engine(folder, **engine)  # first, before the worker's plan sets variables
    worker = VllmAsyncGenerationWorker(config)
    try:
        await worker.post_init_async()
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        usual = SamplingParams(max_tokens=NEW, ignore_eos=True, logprobs=0, detokenize=False)
        plain = SamplingParams(max_tokens=NEW, ignore_eos=True, detokenize=False)
        cheap = usual.clone()
        cheap.flat_logprobs, cheap.output_kind = True, RequestOutputKind.FINAL_ONLY
        ours = vllm_adapter.sampling_params(worker.config.sampling, greedy=False, max_tokens=NEW, coalesce=True)
        for number in range(rounds + 1):
            loads = [
                (_BASE, bare, plain),
                ("bare engine, usual requests, with logprobs", bare, usual),
                ("bare engine, as cheap requests, with logprobs", bare, cheap),
                ("the worker's requests to its engine", worker.engine.llm, ours),
                ("the worker", None, None),
            ]
            for name, llm, params in loads[:: 1 if number % 2 else -1]:
                await timed(name, rollouts.bare_batch(llm, prompts, params) if llm else rollouts.worker_batch(worker, batch))
                await (llm.reset_prefix_cache() if llm else worker.reset_prefix_cache_async())
    finally:
        vllm_adapter.stop_engine(bare)
        await worker.shutdown()
    return measure.rows({name: values[1:] for name, values in times.items()}, to=_BASE)


def measured(rounds: int) -> Iterable[measure.Row]:
    """All rows."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(everything(measure.qwen3(Path(folder), "1.7B"), rounds))


if __name__ == "__main__":
    import torch

    if not torch.cuda.is_available():
        print("benchmarks/generation.py: needs a GPU; its last figures are in docs/results/performance.md")
        sys.exit(0)
    sys.exit(measure.main(__doc__, measured, rounds=4, notes=lambda: _notes))
