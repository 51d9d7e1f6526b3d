"""``quirks show``, and a declaration in words."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.markup import escape

from quirks_core.adjustments import Adjustment, Advise, Default, Patch, Refuse, Require
from quirks_core.cli.screen import Screen
from quirks_core.discovery import discover
from quirks_core.errors import DeclarationError
from quirks_core.loaded import Loaded
from quirks_core.probes import Probe, described
from quirks_core.quirk import PairedRun
from quirks_core.registry import Registry
from quirks_core.validate import documentation


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the quirk's id."""
    parser.add_argument("id", metavar="ID", help="the quirk's id")


def run_show(options: argparse.Namespace) -> int:
    """Shows one quirk's declaration and the documentation beside it."""
    # Only what bears the name is loaded; a plugin that declares several is loaded if none does.
    everything = discover()
    registry = Registry.load([item for item in everything if item.name == options.id] or everything)
    broken = [item for item in registry.broken if item.name == options.id]
    if broken:
        raise DeclarationError(str(broken[0]))
    record = describe(registry.find(options.id))
    if options.json:
        print(json.dumps(record, indent=2, sort_keys=True))
        return 0
    console = Screen()
    console.print(f"[bold]{record['id']}[/]  {escape(record['title'])}", soft_wrap=True)
    for key in ("flag", "severity", "affected", "supersedes", "cost", "since", "distribution", "location"):
        if record[key]:
            text = ", ".join(record[key]) if key == "supersedes" else str(record[key])
            console.print(f"  {key:<13} {escape(text)}", soft_wrap=True, highlight=False)
    for key in ("adjustments", "references", "evidence"):
        for text in record[key]:
            console.print(f"  {key.removesuffix('s'):<13} {escape(text)}", soft_wrap=True, highlight=False)
    console.print()
    console.print(escape(record["documentation"]), soft_wrap=True, highlight=False)
    return 0


def describe(item: Loaded) -> dict[str, Any]:
    """Puts a quirk's declaration into JSON values."""
    quirk = item.quirk
    return {
        "id": quirk.id,
        "title": quirk.title,
        "flag": str(quirk.flag),
        "severity": quirk.severity.value,
        "affected": "; ".join(f"{affected.package} {affected}" for affected in quirk.affected) or "every version",
        "adjustments": [_adjustment(adjustment) for adjustment in quirk.adjustments],
        "references": [f"{reference.type}: {reference.url}" for reference in quirk.references],
        "supersedes": list(quirk.supersedes),
        "evidence": [_evidence(evidence) for evidence in quirk.evidence],
        "cost": quirk.cost,
        "since": quirk.since,
        "distribution": f"{item.distribution} {item.version}",
        "location": str(quirk.location),
        "documentation": documentation(quirk),
    }


def _adjustment(adjustment: Adjustment) -> str:
    match adjustment:
        case Default() | Require():
            value = f"{_name(adjustment.value)}(context)" if callable(adjustment.value) else repr(adjustment.value)
            return f"{type(adjustment).__name__.lower()} {adjustment.slot} = {value}"
        case Refuse():
            return f"refuse: {adjustment.reason}; remedy: {adjustment.remedy}"
        case Advise():
            return "advise" if callable(adjustment.message) else f"advise: {adjustment.message}"
        case Patch():
            return f"patch {adjustment.target} by {adjustment.source}"


def _name(function: object) -> str:
    """Of an object that is called like a function, its type's."""
    return str(getattr(function, "__name__", type(function).__name__))


def _evidence(evidence: Probe | PairedRun) -> str:
    if isinstance(evidence, PairedRun):
        return f"paired run {evidence.scenario}: {evidence.observed}"
    return f"static probe: {described(evidence)}"
