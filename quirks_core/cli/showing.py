"""``quirks show``: a quirk's declaration, or a slot with the quirks that adjust it."""

from __future__ import annotations

import argparse
import inspect
import json
import re
from typing import Any

from quirks_core.base.errors import UsageError
from quirks_core.cli.command import Command
from quirks_core.cli.screen import Screen, line, lines
from quirks_core.configuration.slots import engine_problem, find_slot, installed_slot
from quirks_core.declaration.adjustments import Adjustment, Advise, Default, Patch, Refuse, Require
from quirks_core.declaration.data_file import since
from quirks_core.plan.loaded import Loaded
from quirks_core.plugins.finder import discover
from quirks_core.plugins.registry import Registry
from quirks_core.plugins.validate import documentation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what to show."""
    parser.add_argument("id", metavar="ID", help="a quirk's id, or a slot (engine.block_size)")


def run_show(options: argparse.Namespace) -> int:
    """Shows one quirk's declaration and the documentation beside it, or a slot."""
    return _show_slot(options) if "." in options.id else _show_quirk(options)


def _show_quirk(options: argparse.Namespace) -> int:
    # Only what bears the name is loaded; a plugin that declares several is loaded if none does.
    everything = discover()
    registry = Registry.load([item for item in everything if item.name == options.id] or everything)
    record = describe(registry.find(options.id))
    if options.json:
        print(json.dumps(record, indent=2, sort_keys=True))
        return 0
    screen = Screen()
    screen.say(f"[bold]{line(record['id'])}[/]  {line(record['title'])}")
    keys = ("kind", "flag", "severity", "match", "affected", "supersedes", "cost", "since", "distribution", "location")
    single = [(key, ", ".join(record[key]) if key == "supersedes" else str(record[key])) for key in keys if record[key]]
    listed = [(key.removesuffix("s"), text) for key in ("adjustments", "references", "evidence") for text in record[key]]
    screen.entries([(key, lines(text, 0)) for key, text in (*single, *listed)])
    screen.print()
    for paragraph in re.split(r"\n\s*\n", record["documentation"].strip()):
        screen.say(lines(_reflowed(paragraph), 0), indent=2, hang=0)
        screen.print()
    return 0


def _reflowed(paragraph: str) -> str:
    """Joins the lines of prose, for terminals of any width; lists, tables and code keep theirs."""
    rows = paragraph.splitlines()
    return paragraph if any(re.match(r"\s|[-*] |[|#>$]|```", row) for row in rows) else " ".join(rows)


def _show_slot(options: argparse.Namespace) -> int:
    slot = find_slot(options.id)
    if problem := engine_problem(slot.name):
        raise UsageError(problem)
    slot = installed_slot(slot.name) or slot
    record = {
        "slot": slot.name,
        "takes": slot.takes,
        "default": slot.default,
        "help": slot.help,
        "adjusted by": [
            f"{item.quirk.id}: {notation(adjustment)}"
            for item in Registry.load().loaded
            for adjustment in item.quirk.adjustments
            if isinstance(adjustment, Default | Require) and adjustment.slot == slot.name
        ],
    }
    if options.json:
        print(json.dumps(record, indent=2, sort_keys=True))
        return 0
    screen = Screen()
    screen.say(f"[bold]{line(slot.name)}[/]  {line(slot.help)}")
    default = "left open" if slot.default is None else str(slot.default)
    rows = [("takes", slot.takes), ("default", default), *(("adjusted by", text) for text in record["adjusted by"])]
    screen.entries([(key, lines(text, 0)) for key, text in rows])
    return 0


def notation(adjustment: Adjustment) -> str:
    """Returns what an adjustment does, and when, in the notation of declarations."""
    when = "" if adjustment.when is None else f", if {adjustment.when}"
    match adjustment:
        case Default() | Require():
            contrary = adjustment.instead_of if isinstance(adjustment, Require) else ()
            against = f" instead of {' or '.join(map(str, contrary))}" if contrary else ""
            wanted = f"{adjustment.slot} {adjustment.relation} {_operand(adjustment.operand)}"
            return f"{type(adjustment).__name__.lower()}: {wanted}{against}{when}"
        case Refuse():
            return f"refuse: {adjustment.reason}{when}; remedy: {adjustment.remedy}"
        case Advise():
            return f"advise: {_operand(adjustment.message)}{when}"
        case Patch():
            return f"patch: {adjustment.target}{when}{f': {adjustment.reason}' if adjustment.reason else ''}"
    raise TypeError(adjustment)


def _operand(operand: Any) -> str:
    if callable(operand):
        return f"what follows from the run ({(inspect.getdoc(operand) or operand.__name__).partition(chr(10))[0].rstrip('.')})"
    return str(operand).lower() if isinstance(operand, bool) else str(operand)


def describe(item: Loaded) -> dict[str, Any]:
    """Puts a quirk's declaration into JSON values."""
    quirk = item.quirk
    return {
        "id": quirk.id,
        "title": quirk.title,
        "flag": str(quirk.flag),
        "kind": quirk.kind.value,
        "severity": quirk.severity.value,
        "match": str(quirk.match),
        "affected": quirk.versions,
        "adjustments": [notation(adjustment) for adjustment in quirk.adjustments],
        "references": [f"{reference.type}: {reference.url}" for reference in quirk.references],
        "supersedes": list(quirk.supersedes),
        "evidence": [
            *(f"static probe: {probe}" for probe in quirk.probes),
            *(f"paired run {run.scenario}" for run in quirk.paired_runs),
        ],
        "cost": quirk.cost,
        "since": since(quirk, item.version),
        "distribution": f"{item.distribution} {item.version}",
        "location": str(quirk.location),
        "documentation": documentation(quirk),
    }


COMMAND = Command("show a quirk's declaration, or a slot", run_show, add_arguments)
