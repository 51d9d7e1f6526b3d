"""``quirks plan``: what applies to a run, or to a run on several versions of vLLM."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from quirks_core.base.errors import UsageError
from quirks_core.base.text import one_line
from quirks_core.cli.command import Command, print_document, print_json
from quirks_core.cli.options import ENGINE, add_run, add_versions, load_run, program, read_versions, run_options
from quirks_core.configuration.config import GenerationConfig
from quirks_core.facts.trainers import TRAINERS
from quirks_core.facts.unknown import UNKNOWN
from quirks_core.plan.formats import vllm_args
from quirks_core.plan.records import Plan, State
from quirks_core.plan.summary import Summary
from quirks_core.plugins.planning import make_plan
from quirks_core.reporting.plan import ALL_HEADINGS, HEADINGS, findings, refused, rest, run, verdict
from quirks_core.reporting.plan import versions as versions_of
from quirks_core.reporting.terminal import Screen, line

#: What tells a run with adapters from others, beside the engine's own argument.
_TRAINED = "train.trainable_dtype"
_WITH_LORA = "with LoRA add --set engine.enable_lora=true; where it is merged, train.trainable_dtype=float32 and train.dtype"


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the form of the output, and the command line of a server."""
    parser.add_argument(
        "--format", choices=("vllm-args",),
        help="print only what quirks change, as options to append to 'vllm serve'; what they cannot express goes to standard "
        "error",
    )  # fmt: skip
    add_versions(parser, ",…", "; several make a table of quirks by version (repeatable)")
    parser.add_argument(
        "--verbose", action="store_true",
        help="list all that becomes of quirks, what they cost, and all that cannot be decided, with the reason; by version: "
        "list quirks that concern none, too",
    )  # fmt: skip
    add_run(parser)


def run_plan(options: argparse.Namespace) -> int:
    """Shows what applies to a run and why, or to a run on several versions of vLLM; 1 if the run is refused."""
    if options.json and options.format:
        raise UsageError("--json prints the whole plan, and --format a part of it; choose one of them")
    versions = read_versions(options)
    if len(versions) > 1 and options.format:
        raise UsageError(f"--format prints one plan, and --vllm asks for {len(versions)}; give one version")
    config = load_run(options)
    if len(versions) > 1:
        return run_matrix(options, config, versions)
    plan = make_plan(config, run_options(options, config))
    if options.json:
        print_document({**plan.model_dump(mode="json"), **Summary.of(plan).model_dump(mode="json")})
    elif options.format:
        _print_options(plan)
    else:
        show_plan(Screen(), plan, whole=options.verbose, whom=program(options))
        if options.trainer in TRAINERS and plan.context.fact(_TRAINED) is UNKNOWN and not plan.value("engine.enable_lora"):
            Screen().say(f"[dim]{_WITH_LORA}[/]")
    return 1 if plan.refusals else 0


def show_plan(screen: Screen, plan: Plan, *, whole: bool = False, whom: str = "") -> None:
    """Prints a plan, for a program or, if empty, our worker or the trainer; one that is not `whole` fits a screen."""
    screen.findings([verdict(plan)])
    screen.say(line(run(plan, whom)))
    screen.findings(findings(plan, whole=whole), ALL_HEADINGS if whole else HEADINGS)
    screen.say(f"[dim]{line(rest(plan, whole=whole))}[/]")


def _print_options(plan: Plan) -> None:
    """Prints what can be pasted on standard output, the rest as comments on standard error; for a refused run, the refusals."""
    if plan.refusals:
        Screen(stderr=True).findings(map(refused, plan.refusals))
        return
    words, notes = vllm_args(plan)
    if words:
        print(words)
    for text in notes:
        print(f"# {one_line(text)}", file=sys.stderr)


# ---- by version


#: How a state is shown, and its text in the legend.
_LEGEND = {
    "active": ("[green]active[/]", "concerns the run on that version"),
    "dormant": ("[cyan]dormant[/]", "would, but that version is not affected"),
    "unknown": ("[yellow]unknown[/]", "a fact is missing; the quirk does nothing there"),
    "disabled": ("[yellow]off[/]", "switched off"),
    "superseded": ("[yellow]replaced[/]", "another quirk supersedes it"),
    "not_examined": ("[dim]unexamined[/]", "may concern the run, but nobody examined that version; off there"),
    "not_matched": ("[dim].[/]", "concerns other models or configurations"),
}


def run_matrix(options: argparse.Namespace, config: GenerationConfig, versions: Sequence[str]) -> int:
    """Shows which quirks apply to a run on which versions; 1 if the run is refused on any."""
    making = run_options(options, config)
    registry = making.registry()
    plans = {}
    for version in versions:
        assume = (f"{ENGINE}=={version}", *making.assume[1:])  # the first is assumed already
        plans[version] = make_plan(config, replace(making, assume=assume), registry=registry)
    every = _rows(plans)
    rows = [row for row in every if options.verbose or {one["state"] for one in row["cells"].values()} != {State.NOT_MATCHED}]
    left_out = len(every) - len(rows)
    if options.json:
        context, kept = plans[versions[0]].context, {"digest", "refusals", "warnings"}
        about = {"model": context.model.name, "model_type": context.model.model_type, "purpose": context.purpose}
        here = {"platform": context.platform, "assumed": sorted(context.assumed - {ENGINE})}
        columns = [
            {"version": version, "undecided": plan.undecided, **plan.model_dump(mode="json", include=kept)}
            for version, plan in plans.items()
        ]
        print_json({**about, **here, "left_out": left_out, "columns": columns, "rows": rows})
    else:
        _show(Screen(), plans, rows, left_out)
    return 1 if any(plan.refusals for plan in plans.values()) else 0


def _rows(plans: Mapping[str, Plan]) -> list[dict[str, Any]]:
    """A row for each quirk, with its state on each version and the reason."""
    rows: dict[str, dict[str, Any]] = {}
    for version, plan in plans.items():
        for one in plan.verdicts:
            more = {"title": one.title, "flag": one.flag, "kind": one.kind, "distribution": f"{one.distribution} {one.version}"}
            row = rows.setdefault(one.id, {"id": one.id, **more, "cells": {}})
            row["cells"][version] = {"state": one.state, "because": one.because}
    return list(rows.values())


def _show(screen: Screen, plans: Mapping[str, Plan], rows: Iterable[dict[str, Any]], left_out: int) -> None:
    context = next(iter(plans.values())).context
    whom = f"{context.model.name} ({context.model.model_type}), purpose {context.purpose}"
    screen.say(line(f"{whom}, by version of vLLM; {versions_of(context, without=ENGINE)}"))
    states = {row["id"]: [cell["state"] for cell in row["cells"].values()] for row in rows}
    shown = [(line(name), [_LEGEND[state][0] for state in found]) for name, found in states.items()]
    shown.append(("the run", ["[bold red]refused[/]" if plan.refusals else "ok" for plan in plans.values()]))
    screen.grid("quirk", [line(version) for version in plans], shown)
    seen = {state for found in states.values() for state in found}
    for sign, (word, meaning) in _LEGEND.items():
        if sign in seen:
            screen.say(f"[dim]{word}: {meaning}[/]")
    if left_out:
        screen.say(f"[dim]{left_out} other quirks concern the run on none of them (--verbose)[/]")
    screen.say("[dim]with one version, the command says what to do and why[/]")


PLAN = Command("show what applies to a run and why", run_plan, add_plan_arguments, describes_run=True)
