"""A comparison in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quirks_core.diff import Change
from worker.compare.compare import Cause, Compared, Comparison, Side
from worker.parity.notation import bound, label, number, plain
from worker.parity.summary import crossed
from worker.parity.table import COLOURS

#: The metrics that a person sees; the JSON has all.
_SHOWN = ("mean_abs_delta", "max_abs_delta", "kl_k3")
#: Settings of one side alone that are listed by name.
_LISTED = 8
_LONGEST_VALUE = 60


def show_comparison(console: Console, found: Comparison) -> None:
    """Prints a comparison: the rows, the thresholds that are crossed, what probably moved parity, and all else that differs."""
    console.print(_rows(found))
    for kind in found.kinds:
        for verdict in crossed(kind.verdicts):
            text = f"{kind.kind}: {verdict.metric} {number(verdict.value)}, limit {bound(verdict)} ({verdict.source})"
            console.print(f"[{COLOURS[verdict.level]}]{verdict.level}[/] {escape(text)}", soft_wrap=True, highlight=False)
    if found.causes:
        console.print(_causes(found.causes))
    if (table := _differences(found)).row_count:
        console.print(table)
    console.print(escape(found.reading), soft_wrap=True, highlight=False)


def _table(title: str, *headings: str, caption: str | None = None) -> Table:
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _rows(found: Comparison) -> Table:
    title = f"{escape(found.a.model)}: A = {_engine(found.a)}, B = {_engine(found.b)}"
    caption = f"Δ = A - B in nats, over the tokens before the first difference; thresholds: {escape(found.profile)}"
    table = _table(title, "rows", "same", "equal tokens", *(escape(label(metric)) for metric in _SHOWN), "", caption=caption)
    for kind in found.kinds:
        table.add_row(kind.kind, *_counts(kind), *(number(kind.metrics[metric]) for metric in _SHOWN), _level(kind))
    return table


def _engine(side: Side) -> str:
    return escape(f"vLLM {side.versions.get('vllm', 'unknown')} on {side.platform or 'an unknown platform'}")


def _counts(kind: Compared) -> tuple[str, str]:
    if kind.kind == "teacher-forced":
        return "-", f"{kind.equal_tokens} scored"
    return f"{kind.identical} of {kind.rows}", f"{kind.equal_tokens} of {kind.tokens}"


def _level(kind: Compared) -> str:
    return f"[{COLOURS[kind.level]}]{kind.level}[/]"


def _causes(causes: Sequence[Cause]) -> Table:
    title = "settings that differ and can move tokens or logprobs, the likeliest first"
    table = _table(title, "setting of the engine", "A", "B", "why it matters", "set it by")
    for cause in causes:
        quirks = "".join(f"\nquirk {quirk.id}: {quirk.state}" for quirk in cause.quirks)
        why = f"{cause.concern}: {escape(cause.why)}"
        table.add_row(escape(cause.name), _value(cause.a), _value(cause.b), why, escape(cause.slot + quirks))
    return table


def _differences(found: Comparison) -> Table:
    table = _table("all else that differs", "", "what", "A", "B")
    named = {cause.name for cause in found.causes}
    for group, changes in (("version", found.versions), ("setting", found.settings), ("quirk", found.quirks)):
        table.add_section()
        for change in changes:
            table.add_row(group, escape(change.name), *_sides(change))
    table.add_section()
    others = [change for change in found.effective if change.name not in named]
    for change in others:
        if change.missing is None:
            table.add_row("engine", escape(change.name), *_sides(change))
    for side, has in (("a", "only B has"), ("b", "only A has")):
        if names := [change.name for change in others if change.missing == side]:
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            table.add_row("engine", f"{has} {len(names)}: {escape(', '.join(names[:_LISTED]))}{more}", "", "")
    return table


def _sides(change: Change) -> tuple[str, str]:
    return "-" if change.missing == "a" else _value(change.a), "-" if change.missing == "b" else _value(change.b)


def _value(value: Any) -> str:
    text = plain(value)
    return escape(text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…")
