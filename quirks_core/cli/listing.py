"""``quirks list``: what is installed and what it is about, from metadata and source text; with ``--stage``, by lifecycle."""

from __future__ import annotations

import argparse
import ast
import json
import warnings
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from quirks_core.cli.command import Command
from quirks_core.cli.screen import Screen, line
from quirks_core.declaration.flags import Kind
from quirks_core.plugins.discovery import Discovered, discover
from quirks_core.source.vllm_source import INSTALLED

#: The words that a declaration takes from an enumeration.
_ENUMS = ("Kind", "ModelFlag")
_KIND_WIDTH = max(map(len, Kind))


class _About(NamedTuple):
    """What a declaration's source states about a quirk; None where it is no constant there."""

    title: str | None = None
    flag: str | None = None
    kind: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the filters."""
    parser.add_argument(
        "--stage", choices=("active", "dormant", "expired", "any"),
        help="load the quirks, and list those of a stage with the evidence; exit with 1 if an expired one is listed",
    )  # fmt: skip
    parser.add_argument("--kind", choices=tuple(Kind), help="list the quirks of one kind")


def run_list(options: argparse.Namespace) -> int:
    """Lists the installed plugins, each with the title and the flag that its source declares; or the quirks of a stage."""
    if options.stage:
        from quirks_core.cli.lifecycle import list_stages  # a plain list imports neither the registry nor a plugin

        return list_stages(options.stage, options.kind, as_json=options.json)
    found = [(item, about) for item in discover() if options.kind in (None, (about := _about(item)).kind)]
    if options.json:
        rows = [
            {
                "id": item.name,
                "distribution": item.distribution,
                "version": item.version,
                "entry_point": item.entry_point.value,
                "title": about.title,
                "flag": about.flag,
                "kind": about.kind,
            }
            for item, about in found
        ]
        print(json.dumps(rows, indent=2, sort_keys=True))
        return 0
    screen = Screen()
    for (distribution, version), group in groupby(found, key=lambda pair: (pair[0].distribution, pair[0].version)):
        screen.say(f"[bold]{line(distribution)}[/] {line(version)}")
        screen.entries([(line(item.name), _described(item, about)) for item, about in group])
    screen.say(f"[dim]{counted(about.kind for _, about in found)}[/]")
    return 0


def counted(kinds: Iterable[str | None]) -> str:
    """Counts quirks by kind, in words; None is of no kind that is known."""
    count = Counter(kinds)
    words = [f"{count[kind]} {kind}{'s' if count[kind] != 1 else ''}" for kind in Kind]
    return ", ".join([*words, *([f"{count[None]} of unknown kind"] if count[None] else [])])


def _described(item: Discovered, about: _About) -> str:
    title = line(about.title) if about.title else f"[dim]declared by {line(item.module)}[/]"
    return f"{about.kind or '?':<{_KIND_WIDTH}}  {title}{f' [cyan]({line(about.flag)})[/]' if about.flag else ''}"


def _about(item: Discovered) -> _About:
    """Reads the call of `Quirk` that an entry point names; nothing is known of a plugin that declares its quirks by a hook."""
    module, _, name = (part.strip() for part in item.entry_point.value.partition(":"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python warns of in a third party's source
            found = INSTALLED.statement(f"{module}:{name}") if name else None
    except Exception:  # a file that cannot be read, or is nothing that Python can take
        return _About()
    call = found.value if isinstance(found, ast.Assign | ast.AnnAssign) else None
    given = {word.arg: word.value for word in call.keywords} if isinstance(call, ast.Call) else {}
    if not given:
        return _About()
    is_whole = isinstance(call, ast.Call) and not call.args and None not in given  # no * or ** hides a kind
    kind = _text(given["kind"]) if "kind" in given else Kind.WORKAROUND if is_whole else None
    return _About(_text(given.get("title")), _text(given.get("flag")), kind if kind in tuple(Kind) else None)


def _text(node: ast.expr | None) -> str | None:
    """The text that an argument is, or what ``ModelFlag.LOAD_FORMAT`` or ``Kind.RULE`` names."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    is_flag = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in _ENUMS
    return node.attr.lower() if is_flag and isinstance(node, ast.Attribute) else None


COMMAND = Command("list the installed quirks and what they are about", run_list, add_arguments)
