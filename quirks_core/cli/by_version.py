"""``quirks plan --vllm A,B,…``: which quirks apply to a run on which versions of vLLM."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from packaging.version import Version

from quirks_core.base.errors import UsageError, shown
from quirks_core.base.json_values import canonical
from quirks_core.cli.options import ENGINE, run_options
from quirks_core.configuration.config import GenerationConfig
from quirks_core.plan.records import Plan, State
from quirks_core.plugins.planning import make_plan
from quirks_core.reporting.plan import versions as versions_of
from quirks_core.reporting.terminal import Screen, line

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


def add_versions(parser: argparse.ArgumentParser, more: str = "", several: str = "") -> None:
    """Adds the versions; where several can be given, the words for them."""
    what = f"resolve as if that version of vLLM were installed{several}"
    parser.add_argument("--vllm", metavar=f"VERSION{more}", action="append", default=[], help=what)


def read_versions(options: argparse.Namespace) -> tuple[str, ...]:
    """Reads the comma-separated versions of ``--vllm``, and assumes the first; equal ones count once.

    Raises:
        UsageError: One is not a version, or another option contradicts them.
    """
    seen: dict[Version, str] = {}
    for text in (part.strip() for item in options.vllm for part in item.split(",")):
        try:
            seen.setdefault(Version(text), text)
        except ValueError:  # InvalidVersion, or a number of thousands of digits
            raise UsageError(f"--vllm: {shown(text, 100)} is not a version; write for example --vllm 0.26,0.32.0") from None
    if seen and any(text.partition("==")[0].strip() == ENGINE for text in options.assume):
        raise UsageError("--assume vllm==… and --vllm contradict each other: give the versions with --vllm")
    versions = tuple(seen.values())
    options.assume = [*(f"{ENGINE}=={version}" for version in versions[:1]), *options.assume]
    return versions


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
    context = plans[versions[0]].context
    about: dict[str, Any] = {"model": context.model.name, "model_type": context.model.model_type, "purpose": context.purpose}
    about |= {"platform": context.platform, "assumed": sorted(context.assumed - {ENGINE}), "left_out": len(every) - len(rows)}
    if options.json:
        kept = {"digest", "refusals", "warnings"}
        columns = [
            {"version": version, "undecided": plan.undecided, **plan.model_dump(mode="json", include=kept)}
            for version, plan in plans.items()
        ]
        print(canonical({**about, "columns": columns, "rows": rows}, indent=2))
    else:
        _show(Screen(), plans, rows, about | {"with": versions_of(context, without=ENGINE)})
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


def _show(screen: Screen, plans: Mapping[str, Plan], rows: Iterable[dict[str, Any]], about: Mapping[str, Any]) -> None:
    run = f"{line(about['model'])} ({line(about['model_type'])}), purpose {line(about['purpose'])}"
    screen.say(f"{run}, by version of vLLM; {line(about['with'])}")
    states = {row["id"]: [cell["state"] for cell in row["cells"].values()] for row in rows}
    shown = [(line(name), [_LEGEND[state][0] for state in found]) for name, found in states.items()]
    shown.append(("the run", ["[bold red]refused[/]" if plan.refusals else "ok" for plan in plans.values()]))
    screen.grid("quirk", [line(version) for version in plans], shown)
    seen = {state for found in states.values() for state in found}
    for sign, (word, meaning) in _LEGEND.items():
        if sign in seen:
            screen.say(f"[dim]{word}: {meaning}[/]")
    if about["left_out"]:
        screen.say(f"[dim]{about['left_out']} other quirks concern the run on none of them (--verbose)[/]")
    screen.say("[dim]with one version, the command says what to do and why[/]")
