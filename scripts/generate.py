"""``make generate MODEL=… PROMPT=…``: a real engine continues a prompt, with its plan and its receipt."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from quirks_core.base.errors import QuirksError
from quirks_core.cli.planning import show_plan
from quirks_core.configuration.config import GenerationConfig
from quirks_core.plan.receipt import Receipt
from quirks_core.reporting.terminal import Screen, line, lines
from worker import VllmAsyncGenerationWorker
from worker.lab.cli.arguments import add_verbose
from worker.lab.cli.display import quiet_engine


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
        with console.status(f"starting the engine for {line(worker.config.model.path)} …"):
            await worker.post_init_async()
        async for index, output in worker.generate_text_async({"prompts": list(prompts)}):
            console.say(f"[bold]{lines(prompts[index])}[/]{lines(output['texts'][0])}")
    finally:
        await worker.shutdown()
    _show_receipt(console, worker.receipt)


def _show_receipt(screen: Screen, receipt: Receipt) -> None:
    """Prints what every process acknowledged and what the engine runs with."""
    screen.say("[bold]receipt[/]: what every process has")
    for ack in receipt.processes:
        screen.say(
            f"{line(ack.process)} (pid {ack.pid}), plan {ack.digest[:12]}{'' if ack.effects else ': no effects'}", indent=2
        )
        for item in ack.effects:
            pending = " (at import)" if item.pending else ""
            screen.say(f"{line(item.slot)}: {line(_short(item.before))} → {line(_short(item.after))}{pending}", indent=4)
    screen.say("[bold]read back from the engine[/]")
    values = {slot: value for ack in receipt.processes for slot, value in ack.engine.items()}
    rows = [(line(slot), f"{line(value)}{' by a quirk' if slot in receipt.changes else ''}") for slot, value in values.items()]
    screen.entries(rows)


def _short(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 24 or ":" in text else f"{text[:12]}…"


if __name__ == "__main__":
    main()
