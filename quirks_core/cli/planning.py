"""``quirks plan`` and ``quirks explain``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from rich.markup import escape

from quirks_core.cli.render import show_plan
from quirks_core.cli.run import gather_switches, load_config, load_registry, make_plan
from quirks_core.cli.screen import Screen
from quirks_core.plan import Plan, State


def run_plan(options: argparse.Namespace) -> int:
    """Shows what applies to a run and why; 1 if the run is refused."""
    plan = make_plan(options, load_config(options))
    if options.json:
        print(plan.to_json(indent=2))
    else:
        show_plan(Screen(), plan)
    return 1 if plan.refusals else 0


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the quirk's id."""
    parser.add_argument("id", metavar="ID", help="the quirk's id")


def run_explain(options: argparse.Namespace) -> int:
    """Says whether one quirk concerns a run, with the one comparison that decided."""
    config = load_config(options)
    registry = load_registry(options, gather_switches(options, config))
    if registry.skipped and options.id not in {item.quirk.id for item in registry.loaded}:
        registry = load_registry(options)  # the user asks about it, so it may be imported
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
        State.SUPERSEDED: "is replaced",
    }
    console = Screen()
    console.print(f"[bold]{escape(verdict.id)}[/] {words[verdict.state]}", soft_wrap=True, highlight=False)
    for line in (verdict.because, *_effects(plan, verdict.id)):
        console.print(f"  {escape(line)}", soft_wrap=True, highlight=False)
    return 0


def _effects(plan: Plan, quirk_id: str) -> Iterator[str]:
    """Everything that a quirk does to a run, in words."""
    for item in plan.adjustments:
        if any(quirk.id == quirk_id for quirk in item.quirks):
            yield f"{item.slot} = {item.value} ({item.status}: {item.reason})"
    yield from (f"patch {patch.target}: {patch.quirk.reason}" for patch in plan.patches if patch.quirk.id == quirk_id)
    yield from (warning for warning in plan.warnings if warning.startswith(f"{quirk_id}: "))
    for refusal in plan.refusals:
        if any(quirk.id == quirk_id for quirk in refusal.quirks):
            yield f"refused: {refusal}"
