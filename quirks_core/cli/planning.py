"""``quirks plan`` and ``quirks explain``."""

from __future__ import annotations

import argparse
import json

from rich.console import Console
from rich.markup import escape

from quirks_core.cli.render import show_plan
from quirks_core.cli.run import load_config, make_plan
from quirks_core.plan import State
from quirks_core.registry import Registry


def run_plan(options: argparse.Namespace) -> int:
    """Shows what applies to a run and why; 1 if the run is refused."""
    plan = make_plan(options, load_config(options))
    if options.json:
        print(plan.to_json(indent=2))
    else:
        show_plan(Console(), plan)
    return 1 if plan.refusals else 0


def run_explain(options: argparse.Namespace) -> int:
    """Says whether one quirk concerns a run, with the one comparison that decided."""
    config = load_config(options)
    registry = Registry.load()
    registry.find(options.id)
    plan = make_plan(options, config, registry)
    verdict = next(verdict for verdict in plan.verdicts if verdict.id == options.id)
    if options.json:
        print(json.dumps(verdict.model_dump(mode="json"), indent=2, sort_keys=True, default=str))
        return 0
    words = {
        State.ACTIVE: "applies",
        State.DORMANT: "is dormant: it would concern this run, but the installed version is not affected",
        State.NOT_MATCHED: "does not concern this run",
        State.UNKNOWN: "cannot be decided",
        State.DISABLED: "is switched off",
    }
    console = Console()
    console.print(f"[bold]{escape(verdict.id)}[/] {words[verdict.state]}", soft_wrap=True, highlight=False)
    console.print(f"  {escape(verdict.because)}", soft_wrap=True, highlight=False)
    if verdict.state is State.ACTIVE:
        for item in plan.adjustments:
            for quirk in item.quirks:
                if quirk.id == verdict.id:
                    console.print(
                        f"  {item.slot} = {escape(str(item.value))} ({item.status}: {escape(item.reason)})",
                        soft_wrap=True,
                        highlight=False,
                    )
    return 0
