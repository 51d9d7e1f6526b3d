"""``quirks list``: what is installed and what it is about, from metadata and source text."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from itertools import groupby

from quirks_core.cli.command import Command, print_json
from quirks_core.declaration.flags import Kind
from quirks_core.plugins.finder import About, Discovered, about, discover
from quirks_core.reporting.terminal import Screen, line

_KIND_WIDTH = max(map(len, Kind))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the filter."""
    parser.add_argument("--kind", choices=[*map(str, Kind)], help="list the quirks of one kind")


def run_list(options: argparse.Namespace) -> int:
    """Lists the installed plugins, each with the title and the flag that its source declares."""
    found = [(item, stated) for item in discover() if options.kind in (None, (stated := about(item)).kind)]
    if options.json:
        rows = [
            {
                "id": item.name,
                "distribution": item.distribution,
                "version": item.version,
                "entry_point": item.entry_point.value,
                "title": stated.title,
                "flag": stated.flag,
                "kind": stated.kind,
            }
            for item, stated in found
        ]
        print_json(rows)
        return 0
    screen = Screen()
    for (distribution, version), group in groupby(found, key=lambda pair: (pair[0].distribution, pair[0].version)):
        screen.say(f"[bold]{line(distribution)}[/] {line(version)}")
        screen.entries([(line(item.name), _described(item, stated)) for item, stated in group])
    screen.say(f"[dim]{counted(stated.kind for _, stated in found)}[/]")
    return 0


def counted(kinds: Iterable[str | None]) -> str:
    """Counts quirks by kind, in words; None is of no kind that is known."""
    count = Counter(kinds)
    words = [f"{count[kind]} {kind}{'s' if count[kind] != 1 else ''}" for kind in Kind]
    return ", ".join([*words, *([f"{count[None]} of unknown kind"] if count[None] else [])])


def _described(item: Discovered, stated: About) -> str:
    title = line(stated.title) if stated.title else f"[dim]declared by {line(item.module)}[/]"
    return f"{stated.kind or '?':<{_KIND_WIDTH}}  {title}{f' [cyan]({line(stated.flag)})[/]' if stated.flag else ''}"


COMMAND = Command("list the installed quirks and what they are about", run_list, add_arguments)
