"""Where the time of a rollout goes on a GPU: kernels, and functions of the engine core and of the front end.

    python benchmarks/profile_rollout.py FOLDER PY_SPY        tables; needs a GPU, and the command of py-spy

256 requests of 128 + 256 tokens, a model of the Qwen3-1.7B shape, with CUDA graphs: with logprobs and without, both as the
worker asks for them. First their times in turns; then what py-spy sees of both processes during whole batches; then what
torch's profiler sees of 20 steps in the middle of a batch. FOLDER gets what was sampled.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import measure
import psutil
import rollouts
import torch

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")

REQUESTS, PROMPT, NEW, VOCABULARY = 256, 128, 256, 150_000
STEPS = 20
#: Samples per second.
RATE = 200


def inclusive(stacks: str, seconds: float) -> Iterator[str]:
    """Yields for which share of the time each function, with what it calls, held Python's lock."""
    found: Counter[str] = Counter()
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        for frame in {"all", *stack.split(";")}:
            found[frame] += int(count)
    for frame, count in found.most_common(60):
        yield f"{count / RATE / seconds:7.1%}  {frame}"


@asynccontextmanager
async def py_spy(tool: str, folder: Path, name: str, pids: dict[str, int]) -> AsyncIterator[None]:
    """Samples processes for as long as the context lasts."""
    started = []
    for process, pid in pids.items():
        options = ["record", "-p", str(pid), "-r", str(RATE), "-d", "600", "--gil", "--threads", "-F", "-f", "raw"]
        file = folder / f"{name}-{process}.stacks"
        started.append(
            (await asyncio.create_subprocess_exec(tool, *options, "-o", file, stdout=DEVNULL, stderr=DEVNULL), process, file)
        )
    await asyncio.sleep(1)
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    for running, process, file in started:
        running.send_signal(signal.SIGINT)
        await running.wait()
        print(f"\n== py-spy, {name}, {process}", *inclusive(file.read_text(), seconds), sep="\n", flush=True)


def kernels(trace: Path) -> Iterator[str]:
    """Yields how busy the GPU was, and which kernels it ran."""
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    on_gpu = sorted((e["ts"], e["dur"], e["name"]) for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"))
    busy, end = 0.0, on_gpu[0][0]
    for start, length, _ in on_gpu:
        busy += max(0.0, start + length - max(end, start))
        end = max(end, start + length)
    span = end - on_gpu[0][0]
    yield f"{span / STEPS / 1e3:.2f} ms a step; GPU busy for {busy / STEPS / 1e3:.2f} ms of it, {busy / span:.1%}"
    times: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for _, length, name in on_gpu:
        times[name[:110]] += length
        calls[name[:110]] += 1
    for name, length in times.most_common(25):
        yield f"{length / STEPS:8.0f} us a step, {calls[name] / STEPS:6.1f} calls  {name}"


async def main(folder: Path, tool: str) -> None:
    """Measures everything."""
    from worker import VllmAsyncGenerationWorker
    from worker.engine import vllm_adapter

    prompts = rollouts.prompts(REQUESTS, PROMPT, VOCABULARY)
    traces = folder / "traces"
    profiler = {
        "profiler": "torch",
        "torch_profiler_dir": str(traces),
        "torch_profiler_with_stack": False,
        "ignore_frontend": True,
        "max_iterations": STEPS,
    }
    engine = {
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "gpu_memory_utilization": 0.5,
        "generate_from_dummy": True,
        "vllm_kwargs": {"skip_tokenizer_init": True, "profiler_config": profiler},
    }
    with tempfile.TemporaryDirectory() as model:
        measure.qwen3(Path(model), "1.7B")
        config = {"model": model, "engine": engine, "sampling": {"max_new_tokens": NEW, "ignore_eos": True}}
        worker = VllmAsyncGenerationWorker(config)
        try:
            await worker.post_init_async()
            llm = worker.engine.llm

            def batch(logprobs: int | None) -> Any:
                params = vllm_adapter.sampling_params(worker.config.sampling, greedy=False, max_tokens=NEW, coalesce=True)
                params.logprobs = logprobs
                return rollouts.bare_batch(llm, prompts, params)

            loads = {"without logprobs": None, "with logprobs": 0}
            times: dict[str, list[float]] = {name: [] for name in loads}
            for number in range(6):
                for name, logprobs in loads.items():
                    start = time.perf_counter()
                    await batch(logprobs)
                    await worker.reset_prefix_cache_async()
                    if number:
                        times[name].append((time.perf_counter() - start) * 1e3)
            for name, values in times.items():
                print(f"{name}: min {min(values):.0f}, median {statistics.median(values):.0f} ms", flush=True)
            children = {child.name(): child.pid for child in psutil.Process().children(recursive=True)}
            core = next(pid for name, pid in children.items() if "EngineCor" in name)
            for name, logprobs in loads.items():
                async with py_spy(tool, folder, name.split()[0], {"core": core, "front": os.getpid()}):
                    for _ in range(2):
                        await batch(logprobs)
                        await worker.reset_prefix_cache_async()
            for name, logprobs in loads.items():
                running = asyncio.ensure_future(batch(logprobs))
                await asyncio.sleep(1)
                before = set(traces.glob("*.gz"))
                await llm.start_profile()
                await running
                await llm.stop_profile()
                (trace,) = set(traces.glob("*.gz")) - before
                print(f"\n== torch's profiler, {name}", *kernels(trace), sep="\n", flush=True)
                await worker.reset_prefix_cache_async()
        finally:
            await worker.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(tempfile.gettempdir()), help="for what is sampled")
    parser.add_argument("py_spy", nargs="?", default="py-spy", help="the command of py-spy")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/profile_rollout.py: needs a GPU; its last figures are in docs/results/performance.md")
        sys.exit(0)
    torch.set_num_threads(4)
    asyncio.run(main(options.folder, options.py_spy))
