"""``quirks parity dump`` and ``compare``: what this installation's engine generates, in a file, and two such files."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quirks_core.base.errors import UsageError
from quirks_core.cli.options import load_config, plan_options
from quirks_core.reporting.terminal import Screen, lines
from worker.lab.cli.display import stages

if TYPE_CHECKING:
    from worker.lab.compare.compare import Comparison


def run_dump(options: argparse.Namespace) -> int:
    """Writes what this installation's engine generates to ``options.output``."""
    if options.output is None:
        raise UsageError("quirks parity dump needs --output FILE")
    if options.output.is_dir():
        raise UsageError(f"--output {options.output} is a folder; name a file")
    from worker.lab.compare.dump import Dump
    from worker.lab.compare.dumping import dump_of
    from worker.lab.parity.prompts import load_prompts

    console = Screen(stderr=options.json)
    config = load_config(options)
    others = [] if options.tokens_of is None else [Dump.read(options.tokens_of).sequences]
    prompts = load_prompts(config.model, file=options.prompts)
    planning = plan_options(options, config)
    with stages(console) as notify:
        made = dump_of(config, planning, prompts.rows, options.tokens, seed=options.seed, tokens_of=others, notify=notify)
        dump = asyncio.run(made)
    dump.write(options.output)
    if options.json:
        facts = {"output": str(options.output), "rows": len(dump.rows), "plan": dump.plan, "versions": dump.versions}
        print(json.dumps(facts, indent=2))
    else:
        console.say(lines(f"{len(dump.rows)} rows by vLLM {dump.versions.get('vllm')} in {options.output}"))
    return 0


def run_compare(options: argparse.Namespace, files: Sequence[str]) -> int:
    """Compares two dumps by ``options.profile`` and ``options.threshold``; 1 if a threshold is crossed."""
    if len(files) != 2:
        raise UsageError("quirks parity compare takes two dumps: A.json B.json")
    from worker.lab.compare.compare import compare
    from worker.lab.compare.dump import Dump

    a, b = (Dump.read(Path(file)) for file in files)
    found = compare(a, b, profile=options.profile, thresholds=options.threshold)
    show(options, Screen(), found)
    return 0 if found.passed else 1


def show(options: argparse.Namespace, console: Screen, found: Comparison) -> None:
    """Prints a comparison, as JSON with ``--json``."""
    from worker.lab.compare.table import show_comparison

    if options.json:
        print(found.model_dump_json(indent=2))
    else:
        show_comparison(console, found)
