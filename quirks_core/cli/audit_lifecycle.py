"""``quirks audit-lifecycle``: which quirks are active, dormant on the installed engine, or expired, and how that is known."""

from __future__ import annotations

import argparse
import json

from rich.markup import escape
from rich.table import Table

from quirks_core.cli.command import Command
from quirks_core.cli.screen import Screen
from quirks_core.lifecycle import SUPPORTED_FLOOR, Stage, lifecycle
from quirks_core.registry import Registry
from quirks_core.switches import Switches

_COLOURS = {Stage.ACTIVE: "green", Stage.DORMANT: "cyan", Stage.EXPIRED: "bold red"}


def run_audit_lifecycle(options: argparse.Namespace) -> int:
    """Lists every quirk's stage with its evidence; 1 if one is expired."""
    registry = Registry.load(switches=Switches.gather())
    stages = [(item, lifecycle(item)) for item in registry.loaded]
    if options.json:
        rows = [
            {
                "id": item.quirk.id,
                "distribution": item.distribution,
                "version": item.version,
                "stage": found.stage.value,
                "evidence": found.evidence,
            }
            for item, found in stages
        ]
        print(json.dumps(rows, indent=2, sort_keys=True))
    else:
        floors = ", ".join(f"{package} {version}" for package, version in SUPPORTED_FLOOR.items())
        table = Table(caption=f"oldest supported: {floors}", caption_justify="left")
        table.add_column("quirk", no_wrap=True)
        table.add_column("stage", no_wrap=True)
        table.add_column("evidence", overflow="fold")
        for item, found in stages:
            evidence = escape("\n".join(found.evidence)) or "every version is affected, and no evidence is declared"
            table.add_row(escape(item.quirk.id), f"[{_COLOURS[found.stage]}]{found.stage}[/]", evidence)
        Screen().print(table)
    return 1 if any(found.stage is Stage.EXPIRED for _, found in stages) else 0


COMMAND = Command("list which quirks are active, dormant or expired, with the evidence", run_audit_lifecycle)
