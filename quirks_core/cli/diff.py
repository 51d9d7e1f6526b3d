"""``quirks diff``: what differs between two plans that ``quirks plan --json`` wrote."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from quirks_core.base.errors import UsageError
from quirks_core.base.json_values import canonical
from quirks_core.base.text import listed
from quirks_core.cli.command import Command
from quirks_core.plan.diff import Change, PlanDiff, diff
from quirks_core.plan.records import Plan
from quirks_core.reporting.finding import Finding
from quirks_core.reporting.terminal import Screen, line

_EXPECTED = "expected a plan as 'quirks plan --json' writes it"
_STANDARD_INPUT = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the two plans."""
    for name in ("a", "b"):
        parser.add_argument(
            name, metavar=f"{name.upper()}.json", help="a plan from 'quirks plan --json'; - reads standard input"
        )


def run_diff(options: argparse.Namespace) -> int:
    """Shows what differs between two plans; 1 if anything does."""
    if options.a == options.b == _STANDARD_INPUT:
        raise UsageError("standard input can be one of the two plans, not both")
    found = diff(read_plan(options.a), read_plan(options.b))
    if options.json:
        print(canonical({"same": found.same, **found.model_dump(mode="json")}, indent=2))
    else:
        _show(Screen(), found, options.a, options.b)
    return 0 if found.same else 1


def read_plan(name: str) -> Plan:
    """Reads a plan from a file, or from standard input for ``-``.

    Raises:
        UsageError: It cannot be read, or holds no plan; the message names the file.
    """
    where = "standard input" if name == _STANDARD_INPUT else name
    try:
        text = sys.stdin.buffer.read() if name == _STANDARD_INPUT else Path(name).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise UsageError(f"{where} cannot be read: {getattr(error, 'strerror', None) or error}; {_EXPECTED}") from None
    try:
        return Plan.model_validate_json(text, extra="ignore")  # 'quirks plan --json' has the lists of a plan beside it
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
    if problems[0]["type"] == "json_invalid":
        raise UsageError(f"{where} is not valid JSON ({problems[0]['msg']}); {_EXPECTED}")
    what = (f"{'.'.join(map(str, item['loc'])) or 'the whole'}: {item['msg']}" for item in problems)
    raise UsageError(f"{where} is not a plan ({listed(what, 3, '; ')}); {_EXPECTED}")


def _show(screen: Screen, found: PlanDiff, a: str, b: str) -> None:
    """Prints paths with two values, then the refusals and warnings, which are texts."""
    ours, theirs = (digest[:12] for digest in found.digests)
    if found.same:
        screen.say(f"the same plan: {ours}")
        return
    whole = f"both do the same in every process ({ours}), but differ in:" if ours == theirs else f"digest: {ours} → {theirs}"
    screen.say(f"[red]{line(a)}[/] → [green]{line(b)}[/]\n{whole}")
    kinds = ("facts", "slots", "quirks", "patches")
    rows = [(kind, *row) for kind in kinds for change in getattr(found, kind) for row in _paths(change)]
    screen.findings(Finding(kind, path, f"{_text(left)} → {_text(right)}") for kind, path, left, right in rows)
    for change in (*found.refusals, *found.warnings):  # the name is the text, the values are how often it occurs
        screen.findings([Finding("gone" if (change.a or 0) > (change.b or 0) else "new", "", change.name)])


def _paths(change: Change) -> Iterator[tuple[str, Any, Any]]:
    """Yields what differs: the value, or the keys of a mapping."""
    if not isinstance(change.a or change.b, dict):
        yield change.name, change.a, change.b
        return
    left, right = change.a or {}, change.b or {}
    for key in {**left, **right}:
        if left.get(key) != right.get(key):
            yield f"{change.name}.{key}", left.get(key), right.get(key)


def _text(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else canonical(value)


COMMAND = Command("show what differs between two plans", run_diff, add_arguments)
