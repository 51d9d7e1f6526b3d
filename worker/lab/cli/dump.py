"""``quirks parity dump``: what this installation's engine generates, in a file."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

from quirks_core.base.errors import UsageError
from quirks_core.cli.options import load_config
from quirks_core.cli.screen import Screen, lines
from quirks_core.plan.switches import SwitchNames
from worker.lab.cli.display import stages

if TYPE_CHECKING:
    from worker.lab.compare.dump import Order


def run_dump(options: argparse.Namespace) -> int:
    """Writes what this installation's engine generates to ``options.output``; `make_order` defines its options."""
    if options.output is None:
        raise UsageError("quirks parity dump needs --output FILE")
    if options.output.is_dir():
        raise UsageError(f"--output {options.output} is a folder; name a file")
    console = Screen(stderr=options.json)
    order = make_order(options, console)
    from worker.lab.compare.dumping import carry_out

    with stages(console) as notify:
        dump = asyncio.run(carry_out(order, notify))
    if options.json:
        facts = {"output": order.output, "rows": len(dump.rows), "plan": dump.plan, "versions": dump.versions}
        print(json.dumps(facts, indent=2))
    else:
        console.say(lines(f"{len(dump.rows)} rows by vLLM {dump.versions.get('vllm')} in {order.output}"))
    return 0


def make_order(options: argparse.Namespace, console: Screen) -> Order:
    """Reads configuration and prompts, before any engine starts.

    Args:
        options: Those that describe a run, and ``prompts``, ``num_prompts``, ``tokens``, ``samples``, ``seed``, ``output`` and
            ``tokens_of``; the last two may be None or missing.
        console: Where warnings go.

    Raises:
        UsageError: Something in them is wrong.
    """
    from worker.lab.compare.dump import Dump, Order
    from worker.lab.parity.prompts import load_prompts

    config = load_config(options)
    tokens_of = getattr(options, "tokens_of", None)
    if tokens_of is not None:
        Dump.read(Path(tokens_of))  # fails here, before the engine starts
    prompts = load_prompts(config.model, file=options.prompts, count=options.num_prompts, seed=options.seed)
    for warning in prompts.warnings:
        console.say(f"[yellow]warning:[/] {lines(warning)}")
    return Order(
        config=config.model_dump(mode="json", exclude_unset=True),
        switches=SwitchNames(options.disable, options.force),
        strict=options.strict,
        locked=None if options.locked is None else str(Path(options.locked).absolute()),
        prompts=prompts.rows,
        new_tokens=options.tokens,
        samples=options.samples,
        seed=options.seed,
        tokens_of=None if tokens_of is None else str(tokens_of),
        output=str(options.output),
    )
