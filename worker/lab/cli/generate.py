"""``quirks generate``: a real engine, a prompt, and the receipt."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import TYPE_CHECKING, Any

from quirks_core.cli.command import Command
from quirks_core.cli.options import installed_only, load_config, plan_options
from quirks_core.cli.render import show_plan, show_receipt
from quirks_core.cli.screen import Screen, lines
from worker.lab.cli.arguments import add_verbose
from worker.lab.cli.display import progress, quiet_engine, start

if TYPE_CHECKING:
    from worker.async_worker import VllmAsyncGenerationWorker


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the prompts and how to treat them."""
    parser.add_argument("prompts", nargs="+", metavar="PROMPT", help="text to continue")
    parser.add_argument("--greedy", action="store_true", help="take the most probable tokens instead of sampling")
    add_verbose(parser)


def run_generate(options: argparse.Namespace) -> int:
    """Starts an engine, generates from every prompt, shows texts and receipt."""
    installed_only(options)
    quiet_engine(verbose=options.verbose)
    config = load_config(options, default_purpose="eval")
    from worker import VllmAsyncGenerationWorker

    worker = VllmAsyncGenerationWorker(config, options=plan_options(options, config))
    # With --json standard output holds the JSON alone.
    console = Screen(stderr=options.json)
    show_plan(console, worker.plan)
    result = asyncio.run(_generate(worker, options, console))
    if options.json:
        print(json.dumps(result, indent=2, sort_keys=True))
    return 0


async def _generate(worker: VllmAsyncGenerationWorker, options: argparse.Namespace, console: Screen) -> dict[str, Any]:
    texts = [""] * len(options.prompts)
    try:
        await start(worker, console)
        with progress(console) as bar:
            task = bar.add_task("generating", total=len(texts))
            async for index, output in worker.generate_text_async({"prompts": options.prompts}, greedy=options.greedy):
                texts[index] = output["texts"][0]
                bar.advance(task)
    finally:
        await worker.shutdown()
    for prompt, text in zip(options.prompts, texts, strict=True):
        console.say(f"[bold]{lines(prompt)}[/]{lines(text)}")
    receipt = worker.receipt
    show_receipt(console, receipt)
    return {
        "texts": texts,
        "plan": json.loads(worker.plan.to_json()),
        "receipt": receipt.model_dump(mode="json"),
        "warnings": worker.warnings,
    }


COMMAND = Command("start a real engine and generate from prompts", run_generate, add_arguments, describes_run=True)
