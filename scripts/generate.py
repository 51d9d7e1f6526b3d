"""``make generate MODEL=… PROMPT=…``: a real engine continues a prompt, with its plan and its receipt."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from quirks_core.base.errors import QuirksError
from quirks_core.cli.render import show_plan, show_receipt
from quirks_core.cli.screen import Screen, lines
from quirks_core.configuration.config import GenerationConfig
from worker import VllmAsyncGenerationWorker
from worker.lab.cli.arguments import add_verbose
from worker.lab.cli.display import quiet_engine, start


def main(arguments: Sequence[str] | None = None) -> None:
    """Starts an engine, and shows plan, texts and receipt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="+", metavar="PROMPT", help="text to continue")
    parser.add_argument("--model", metavar="FOLDER|ID", required=True, help="model folder or hub id")
    parser.add_argument("--set", metavar="SLOT=VALUE", action="append", default=[], help="set one key of the configuration")
    add_verbose(parser)
    options = parser.parse_args(arguments)
    quiet_engine(verbose=options.verbose)
    try:
        config = GenerationConfig.load(None, model=options.model, settings=["purpose=eval", *options.set])
        asyncio.run(_generate(VllmAsyncGenerationWorker(config), options.prompts))
    except QuirksError as error:
        sys.exit(f"error: {error}")


async def _generate(worker: VllmAsyncGenerationWorker, prompts: Sequence[str]) -> None:
    console = Screen()
    show_plan(console, worker.plan)
    try:
        await start(worker, console)
        async for index, output in worker.generate_text_async({"prompts": list(prompts)}):
            console.say(f"[bold]{lines(prompts[index])}[/]{lines(output['texts'][0])}")
    finally:
        await worker.shutdown()
    show_receipt(console, worker.receipt)


if __name__ == "__main__":
    main()
