"""``make demo``: vLLM's own server with quirks, plans of tiny models, and our worker, from dummy weights through a refit."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo_server import running_server

from quirks_core.base.errors import QuirksError
from quirks_core.cli.render import show_plan, show_receipt
from quirks_core.cli.screen import Screen
from quirks_core.configuration.config import GenerationConfig
from quirks_core.facts.packages import installed_platform
from quirks_core.plan.records import Plan
from quirks_core.plugins.planning import PlanOptions, make_plan
from worker.lab.cli.arguments import add_verbose
from worker.lab.cli.display import progress, quiet_engine, start

if TYPE_CHECKING:
    from worker.async_worker import VllmAsyncGenerationWorker

_PROMPTS = ("The capital of France is", "One, two, three,", "import torch", "Once upon a time")

#: Title, kind of checkpoint, configuration and assumptions of every plan that is shown.
_PLANS: tuple[tuple[str, str, dict[str, Any], tuple[str, ...]], ...] = (
    ("Gemma-3 on the installed vLLM: a dormant quirk", "gemma3", {}, ()),
    (
        "Gemma-3 on vLLM 0.9.1, with dummy weights set by hand and context parallelism: refused, with every reason",
        "gemma3",
        {"engine": {"load_format": "dummy"}, "train": {"context_parallel_size": 2}},
        ("vllm==0.9.1",),
    ),
    (
        "Qwen3-MoE over two data-parallel ranks with sharded experts",
        "qwen3_moe",
        {"engine": {"data_parallel_size": 2, "enable_expert_parallel": True}},
        (),
    ),
    ("Gemma-4 on the installed vLLM: an active quirk", "gemma4", {}, ()),
)


def main() -> None:
    """Runs the demonstration; under two minutes on two CPU cores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", metavar="FILE", type=Path, help="write plans, the server's answer and the receipt as JSON")
    add_verbose(parser)
    options = parser.parse_args()
    quiet_engine(verbose=options.verbose)
    try:
        shown = _demonstrate(Screen())
    except QuirksError as error:
        sys.exit(f"error: {error}")
    if options.output:
        options.output.write_text(json.dumps(shown, indent=2, sort_keys=True), encoding="utf-8")


def _demonstrate(console: Screen) -> dict[str, Any]:
    from worker.lab.kit import checkpoints

    with tempfile.TemporaryDirectory(prefix="quirks-demo-") as folder:
        models: dict[str, Path] = {}
        with progress(console) as bar:
            task = bar.add_task("making tiny random checkpoints", total=3)
            for kind in ("gemma3", "gemma4", "qwen3_moe"):
                models[kind] = checkpoints.build(kind, Path(folder) / kind)
                bar.advance(task)
        _small_engines()
        served: dict[str, Any] = {}
        with ExitStack() as stack:
            answer = stack.enter_context(running_server(models["gemma4"], console))
            plans = _show_plans(models, console)

            def ask() -> None:
                served.update(answer())
                stack.close()

            # On a CPU the worker's engine starts beside the server's. A GPU's memory belongs to one engine at a time.
            together = installed_platform() == "cpu"
            if not together:
                ask()
            outcome = asyncio.run(_rollout(models["gemma4"], console, ask if together else None))
    return {"plans": [json.loads(plan.to_json()) for plan in plans], "server": served, **outcome}


def _show_plans(models: Mapping[str, Path], console: Screen) -> list[Plan]:
    plans: list[Plan] = []
    for title, kind, values, assume in _PLANS:
        config = GenerationConfig.parse({**values, "model": str(models[kind])})
        plans.append(make_plan(config, PlanOptions.gather(config, assume=assume)))
        show_plan(console, plans[-1], title=title)
    return plans


def _small_engines() -> None:
    """Sets what lets tiny models start quickly, unless the user has set it."""
    if installed_platform() == "cpu":
        # By default the CPU build takes nearly all memory for its KV cache; a tiny model needs none of it.
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        # A process for the only worker, which the CPU build adds to bind threads to cores, takes as long to start as the rest.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    # Compiling takes longer here than all of the generation.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")


async def _rollout(model: Path, console: Screen, started: Callable[[], None] | None) -> dict[str, Any]:
    """What a trainer does: start from dummy weights, refit, generate. Calls ``started`` once the engine is up."""
    from transformers import AutoModelForCausalLM

    from worker import VllmAsyncGenerationWorker

    worker = VllmAsyncGenerationWorker(
        {
            "model": str(model),
            # The demo shows what dummy weights generate, which a worker otherwise refuses.
            "engine": {"enforce_eager": True, "dtype": "float32", "max_model_len": 256, "generate_from_dummy": True},
            "sampling": {"max_new_tokens": 24, "ignore_eos": True},
        }
    )
    try:
        await start(worker, console)
        if started is not None:
            started()
        before = await _generate(worker, console, "rolling out from dummy weights")
        with console.status(f"refit from the trainer (refit.scope = {worker.plan.value('refit.scope')}) …"):
            trainer = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
            await worker.refit_async(trainer)
        after = await _generate(worker, console, "rolling out after the refit")
    finally:
        await worker.shutdown()
    receipt = worker.receipt
    show_receipt(console, receipt)
    console.say(f"mean logprob of a token: {before:.2f} before the refit, {after:.2f} after it")
    return {
        "receipt": receipt.model_dump(mode="json"),
        "mean_logprob": {"before_refit": before, "after_refit": after},
    }


async def _generate(worker: VllmAsyncGenerationWorker, console: Screen, title: str) -> float:
    """Generates greedily from the demo's prompts; returns the mean logprob of a generated token."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(worker.config.model.path)
    rows = [torch.tensor(tokenizer(prompt)["input_ids"]) for prompt in _PROMPTS]
    batch = {
        "input_ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id),
        "input_lengths": torch.tensor([len(row) for row in rows]),
    }
    total, tokens = 0.0, 0
    with progress(console) as bar:
        task = bar.add_task(title, total=len(rows))
        async for _, output in worker.generate_async(batch, greedy=True):
            total += float(output["logprobs"].sum())
            tokens += int(output["generation_lengths"])
            bar.advance(task)
    return total / tokens


if __name__ == "__main__":
    main()
