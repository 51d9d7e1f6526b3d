"""``quirks generate``: a real engine, a prompt, and the receipt."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from quirks_core.cli.render import show_plan, show_receipt
from quirks_core.cli.run import load_config
from quirks_core.cli.screen import Screen
from quirks_core.errors import UsageError
from quirks_core.lock import LOCKED_VARIABLE
from quirks_core.registry import STRICT_VARIABLE

if TYPE_CHECKING:
    from worker.async_worker import VllmAsyncGenerationWorker


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the prompts and how to treat them."""
    parser.add_argument("prompts", nargs="+", metavar="PROMPT", help="text to continue")
    parser.add_argument("--greedy", action="store_true", help="take the most probable tokens instead of sampling")
    parser.add_argument("--verbose", action="store_true", help="show the engine's log")


def run_generate(options: argparse.Namespace) -> int:
    """Starts an engine, generates from every prompt, shows texts and receipt."""
    if options.assume:
        raise UsageError("--assume makes plans for versions that are not installed; generate runs the installed one")
    quiet_engine(verbose=options.verbose)
    config = load_config(options, default_purpose="eval")
    from worker import VllmAsyncGenerationWorker

    if options.strict:
        os.environ[STRICT_VARIABLE] = "1"
    if options.locked:
        os.environ[LOCKED_VARIABLE] = options.locked
    worker = VllmAsyncGenerationWorker(config, disable=options.disable, force=options.force)
    # With --json standard output holds the JSON alone.
    console = Screen(stderr=options.json)
    show_plan(console, worker.plan)
    result = asyncio.run(_generate(worker, options, console))
    if options.json:
        print(json.dumps(result, indent=2, sort_keys=True))
    return 0


async def _generate(worker: VllmAsyncGenerationWorker, options: argparse.Namespace, console: Console) -> dict[str, Any]:
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
        console.print(f"[bold]{escape(prompt)}[/]{escape(text)}", soft_wrap=True, highlight=False)
    receipt = worker.receipt
    show_receipt(console, receipt)
    return {
        "texts": texts,
        "plan": json.loads(worker.plan.to_json()),
        "receipt": receipt.model_dump(mode="json"),
        "warnings": worker.warnings,
    }


async def start(worker: VllmAsyncGenerationWorker, console: Console) -> None:
    """Starts a worker's engine behind a spinner; it takes 20 to 60 s on two CPU cores."""
    with console.status(f"starting the engine for {worker.config.model.path} …"):
        await worker.post_init_async()


def progress(console: Console) -> Progress:
    """Makes the progress display for a batch."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def quiet_engine(*, verbose: bool) -> None:
    """Keeps the engine's log out of the display, unless the user asked for it; errors still show."""
    if not verbose:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
