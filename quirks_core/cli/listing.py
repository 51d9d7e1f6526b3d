"""``quirks list``: from metadata alone, so nothing heavy is imported here."""

from __future__ import annotations

import argparse
import json

from rich.markup import escape
from rich.table import Table

from quirks_core.cli.command import Command
from quirks_core.cli.screen import Screen
from quirks_core.discovery import discover


def run_list(options: argparse.Namespace) -> int:
    """Lists the installed plugins from their metadata alone."""
    found = discover()
    if options.json:
        rows = [
            {"id": i.name, "distribution": i.distribution, "version": i.version, "entry_point": i.entry_point.value}
            for i in found
        ]
        print(json.dumps(rows, indent=2, sort_keys=True))
        return 0
    table = Table()
    for heading in ("id", "distribution", "version", "module"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "id")
    for item in found:
        table.add_row(*map(escape, (item.name, item.distribution, item.version, item.module)))
    Screen().print(table)
    return 0


COMMAND = Command("list the installed quirks; imports none of them", run_list)
