"""``quirks plan --vllm A,B,…``: which quirks apply to a run on which versions of vLLM."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from packaging.version import Version

from quirks_core.base.errors import UsageError, shown
from quirks_core.base.json_values import canonical
from quirks_core.cli.options import ENGINE, plan_options
from quirks_core.configuration.config import GenerationConfig
from quirks_core.facts.context import RunContext
from quirks_core.plan.records import NoteKind, Plan, State
from quirks_core.plan.switches import Switches
from quirks_core.plugins.registry import Registry
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.plan import findings
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


def read_versions(options: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Reads the comma-separated versions of ``--vllm``, and assumes the first.

    Returns:
        The versions as they were given, in order; and those left out because an equal one came before.

    Raises:
        UsageError: One is not a version, or another option contradicts them.
    """
    seen: dict[Version, str] = {}
    again: list[str] = []
    for text in (part.strip() for item in options.vllm for part in item.split(",")):
        try:
            version = Version(text)
        except ValueError:  # InvalidVersion, or a number of thousands of digits
            raise UsageError(f"--vllm: {shown(text, 100)} is not a version; write for example --vllm 0.26,0.32.0") from None
        if seen.setdefault(version, text) is not text:
            again.append(text)
    if seen and any(text.partition("==")[0].strip() == ENGINE for text in options.assume):
        raise UsageError("--assume vllm==… and --vllm contradict each other: give the versions with --vllm")
    versions = tuple(seen.values())
    options.assume = [*(f"{ENGINE}=={version}" for version in versions[:1]), *options.assume]
    return versions, tuple(again)


def make_plans(registry: Registry, context: RunContext, versions: Iterable[str], switches: Switches) -> dict[str, Plan]:
    """Resolves one run for several versions of vLLM, each of which counts as assumed.

    Raises:
        UsageError: A switch names nothing.
    """
    plans = {}
    for version in versions:
        changed = {"packages": {**context.packages, ENGINE: version}, "assumed": context.assumed | {ENGINE}}
        plans[version] = registry.resolve(context.model_copy(update=changed), switches)
    return plans


def run_matrix(options: argparse.Namespace, config: GenerationConfig, versions: Sequence[str], again: Iterable[str]) -> int:
    """Shows which quirks apply to a run on which versions; 1 if the run is refused on any.

    Args:
        options: Parsed arguments of ``quirks plan``; the first version is assumed in them.
        config: The run.
        versions: The versions.
        again: Versions that were given, and are left out because an equal one came before.
    """
    making = plan_options(options, config)
    registry = making.registry()
    context = RunContext.gather(config, fact_names=registry.fact_names, assume=making.assume)
    plans = make_plans(registry, context, versions, making.switches)
    every = _rows(plans)
    rows = [row for row in every if options.verbose or {one["state"] for one in row["cells"].values()} != {State.NOT_MATCHED}]
    about: dict[str, Any] = {"model": context.model.name, "model_type": context.model.model_type, "purpose": context.purpose}
    about["left_out"] = len(every) - len(rows)
    about["notes"] = [f"--vllm {text} is given already, and left out" for text in again]
    if options.json:
        kept = {"digest", "refusals", "warnings"}
        columns = [
            {"version": version, "undecided": plan.undecided, **plan.model_dump(mode="json", include=kept)}
            for version, plan in plans.items()
        ]
        print(canonical({**about, "columns": columns, "rows": rows}, indent=2))
    else:
        _show(Screen(), plans, rows, about, verbose=options.verbose)
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


def _show(
    screen: Screen, plans: Mapping[str, Plan], rows: Iterable[dict[str, Any]], about: Mapping[str, Any], *, verbose: bool
) -> None:
    screen.say(f"{line(about['model'])} ({line(about['model_type'])}), purpose {line(about['purpose'])}, by version of vLLM")
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
    screen.findings(Finding("note", "", text) for text in about["notes"])
    where: dict[Finding, list[str]] = {}
    for version, plan in plans.items():
        for one in _findings(plan, verbose=verbose):
            where.setdefault(one, []).append(version)
    for one, found_on in where.items():
        subject = f"{one.subject}, " if one.subject else ""
        screen.findings([replace(one, subject=f"{subject}on {', '.join(dict.fromkeys(found_on))}")])


def _findings(plan: Plan, *, verbose: bool) -> Iterator[Finding]:
    """What the table does not show; what is not checked is known of every assumed version."""
    in_table = {note.text for note in plan.warnings if note.kind is NoteKind.UNEXAMINED}
    for one in findings(plan, whole=verbose):
        if one.level in ("refused", "undecided", "warning") and one.message not in in_table:
            yield one
