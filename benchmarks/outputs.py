"""Outputs that leave the engine core once per request, beside outputs after every step, in the same engine.

    python benchmarks/outputs.py            a table; on a GPU 256 requests of 128 + 256 tokens, a model of the Qwen3-1.7B shape
    python benchmarks/outputs.py --json     the same as JSON

Without a GPU: 64 requests of 16 + 128 tokens, a tiny model, eager execution. The same requests take turns with and without the
mark of the quirk ``coalesced-outputs``, with and without logprobs, and through the worker. Beside the time of each batch stands
the CPU time that this process, the front end, took for it: a trainer in the same event loop waits for that long. The exit code
is 1 if the numbers of tokens or of outputs are not what they should be.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import measure
import rollouts
import torch

GPU = torch.cuda.is_available()
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
if not GPU:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

SHAPE, REQUESTS, PROMPT, NEW, VOCABULARY = ("1.7B", 256, 128, 256, 150_000) if GPU else ("tiny", 64, 16, 128, 500)
_BASE = "without logprobs, an output per step"
_FRONT = "front end's CPU: "
_notes: list[str] = []


def counted(llm: Any) -> Counter[str]:
    """Counts the outputs of each request that reach the front end from now on."""
    arrived: Counter[str] = Counter()
    process = llm.output_processor.process_outputs

    def process_outputs(outputs: list[Any], *args: Any, **named: Any) -> Any:
        arrived.update(output.request_id for output in outputs)
        return process(outputs, *args, **named)

    llm.output_processor.process_outputs = process_outputs
    return arrived


async def everything(folder: Path, rounds: int) -> list[measure.Row]:
    """All rows."""
    from worker import VllmAsyncGenerationWorker
    from worker.engine import vllm_adapter

    prompts = rollouts.prompts(REQUESTS, PROMPT, VOCABULARY)
    batch = {"input_ids": torch.tensor(prompts), "input_lengths": torch.full((REQUESTS,), PROMPT)}
    special: dict[str, Any] = {"gpu_memory_utilization": 0.5} if GPU else {"enforce_eager": True, "max_num_seqs": REQUESTS}
    engine = {"dtype": "bfloat16", "max_model_len": 1024, "generate_from_dummy": True, "skip_tokenizer_init": True, **special}
    config = {"model": str(folder), "engine": engine, "sampling": {"max_new_tokens": NEW, "ignore_eos": True}}
    times: dict[str, list[float]] = {}
    busy: dict[str, list[float]] = {}
    worker = VllmAsyncGenerationWorker(config)
    try:
        await worker.post_init_async()
        llm = worker.engine.llm
        arrived = counted(llm)

        def params(*, coalesce: bool, logprobs: int | None) -> Any:
            made = vllm_adapter.sampling_params(worker.config.sampling, greedy=False, max_tokens=NEW, coalesce=coalesce)
            made.logprobs = logprobs
            return made

        async def timed(name: str, call: Any, outputs: int) -> None:
            await worker.reset_prefix_cache_async()
            arrived.clear()
            start, cpu = time.perf_counter(), time.process_time()
            tokens = await call
            times.setdefault(name, []).append((time.perf_counter() - start) * 1e3)
            busy.setdefault(f"{_FRONT}{name}", []).append((time.process_time() - cpu) * 1e3)
            print(f"{name}: {times[name][-1]:.0f} ms, {REQUESTS * NEW / times[name][-1] * 1e3:,.0f} tokens/s", file=sys.stderr)
            if tokens != REQUESTS * NEW or set(arrived.values()) != {outputs}:
                _notes.append(f"{name}: {tokens} tokens, {sorted(set(arrived.values()))} outputs per request, not {outputs}")

        hows = [("an output per step", False, NEW), ("one output", True, 1)]
        for number in range(rounds + 1):
            for words, logprobs in (("without logprobs", None), ("with logprobs", 0)):
                for how, coalesce, outputs in hows[:: 1 if number % 2 else -1]:
                    call = rollouts.bare_batch(llm, prompts, params(coalesce=coalesce, logprobs=logprobs))
                    await timed(f"{words}, {how}", call, outputs)
            await timed("the worker, with logprobs", rollouts.worker_batch(worker, batch), 1)
    finally:
        await worker.shutdown()
    whole, front = ({name: values[1:] for name, values in found.items()} for found in (times, busy))
    return [*measure.rows(whole, to=_BASE), *measure.rows(front, to=f"{_FRONT}{_BASE}")]


def measured(rounds: int) -> Iterable[measure.Row]:
    """All rows."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(everything(measure.qwen3(Path(folder), SHAPE), rounds))


if __name__ == "__main__":
    sys.exit(measure.main(__doc__, measured, rounds=4, notes=lambda: _notes))
