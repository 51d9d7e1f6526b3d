"""``quirks diff``: what differs between two plans that ``quirks plan --json`` wrote."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from quirks_core.base.errors import UsageError
from quirks_core.base.json_values import canonical
from quirks_core.base.text import listed
from quirks_core.cli.command import Command
from quirks_core.cli.screen import Screen, line, lines
from quirks_core.plan.diff import Change, PlanDiff, QuirkSide, SlotSide, diff
from quirks_core.plan.records import Plan

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
    """Prints what differs as ``diff -u`` does: the first plan's side behind a minus, the second's behind a plus."""
    ours, theirs = (digest[:12] for digest in found.digests)
    if found.same:
        screen.say(f"the same plan: {ours}")
        return
    if ours == theirs:
        screen.say(f"both do the same in every process ({ours}), but differ in:")
    screen.say(f"[red]--- {line(a)}[/]")
    screen.say(f"[green]+++ {line(b)}[/]")
    for kind, group in groupby(_rows(found), key=lambda row: row[0]):
        screen.say(f"\n[bold]{kind}[/]")
        for _, what, left, right in group:
            if what:
                screen.say(line(what), indent=2)
            for sign, colour, side in (("-", "red", left), ("+", "green", right)):
                if side is not None:
                    screen.say(f"[{colour}]{sign}[/] {lines(side)}", indent=4)


def _rows(found: PlanDiff) -> Iterator[tuple[str, str, str | None, str | None]]:
    """Kind, what, the first plan's side and the second's; None where that plan has nothing of it."""
    if found.digests[0] != found.digests[1]:
        yield "digest", "", found.digests[0][:12], found.digests[1][:12]
    for fact in found.facts:
        yield "fact", fact.name, _text(fact, "a"), _text(fact, "b")
    for slot in found.slots:
        ledger = (slot.a.value, slot.a.who) == (slot.b.value, slot.b.who)
        yield "slot", slot.slot, _slot(slot.a, ledger=ledger), _slot(slot.b, ledger=ledger)
    for quirk in found.quirks:
        sources = quirk.a and quirk.b and (quirk.a.distribution, quirk.a.version) == (quirk.b.distribution, quirk.b.version)
        yield "quirk", quirk.id, _quirk(quirk.a, source=not sources), _quirk(quirk.b, source=not sources)
    for patch in found.patches:
        yield "patch", patch.name, _patch(patch, "a"), _patch(patch, "b")
    for refusal in found.refusals.a:
        yield "refusal", refusal.slot or "", str(refusal), None
    for refusal in found.refusals.b:
        yield "refusal", refusal.slot or "", None, str(refusal)
    for warning in found.warnings.a:
        yield "warning", "", warning.text, None
    for warning in found.warnings.b:
        yield "warning", "", None, warning.text


def _text(change: Change, side: str) -> str | None:
    return None if change.missing == side else _value(getattr(change, side))


def _value(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value)


def _slot(side: SlotSide, *, ledger: bool) -> str:
    """Value and whose it is; where that is the same on both sides, what differs instead."""
    first = "left open" if side.value is None else f"{_value(side.value)} ({', '.join(side.who)})"
    if not ledger:
        return first
    before = "left open" if side.before is None else _value(side.before)
    return "\n".join([first, f"before quirks: {before}{' (typed)' if side.typed else ''}", *side.ledger])


def _quirk(side: QuirkSide | None, *, source: bool) -> str:
    if side is None:
        return "not installed"
    origin = f" [{side.distribution} {side.version}]" if source else ""
    return f"{side.state.replace('_', ' ')}{origin}\n{side.because}"


def _patch(change: Change, side: str) -> str | None:
    body = getattr(change, side)
    if change.missing == side:
        return None
    other = change.b if side == "a" else change.a
    differing = {key: value for key, value in body.items() if change.missing or other.get(key) != value}
    return "\n".join(f"{key}: {_value(value)}" for key, value in differing.items() if value is not None)


COMMAND = Command("show what differs between two plans", run_diff, add_arguments)
