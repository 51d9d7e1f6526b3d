"""A comparison in a terminal, as lines that also fit into 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quirks_core.base.text import listed
from quirks_core.plan.diff import Change
from quirks_core.reporting.terminal import Screen, line
from worker.lab.compare.compare import Cause, Compared, Comparison, Side
from worker.lab.parity.notation import bound, label, number, plain
from worker.lab.parity.report import COLOURS
from worker.lab.parity.summary import crossed

#: The metrics that a person sees; the JSON has all.
_SHOWN = ("mean_abs_delta", "max_abs_delta", "kl_k3")
_LONGEST_VALUE = 60


def show_comparison(screen: Screen, found: Comparison) -> None:
    """Prints a comparison: the rows, the crossed thresholds, the likely causes, the other differences, and the reading."""
    screen.say(f"[bold]{line(found.a.model)}[/]: A = {_engine(found.a)}, B = {_engine(found.b)}")
    screen.print()
    screen.grid(
        "rows",
        ["result", "same", "equal tokens", *(line(label(metric)) for metric in _SHOWN)],
        [(kind.kind, _cells(kind)) for kind in found.kinds],
    )
    caption = f"Δ = A - B in nats, over the tokens before the first difference; thresholds: {line(found.profile)}"
    screen.say(f"[dim]{caption}[/]")
    for kind in found.kinds:
        for verdict in crossed(kind.verdicts):
            text = f"{kind.kind}: {verdict.metric} {number(verdict.value)}, limit {bound(verdict)} ({verdict.source})"
            screen.say(f"[{COLOURS[verdict.level]}]{verdict.level}[/] {line(text)}")
    if found.causes:
        _show_causes(screen, found.causes)
    _show_differences(screen, found)
    screen.say(f"\n{line(found.reading)}")


def _engine(side: Side) -> str:
    return line(f"vLLM {side.versions.get('vllm', 'unknown')} on {side.platform or 'an unknown platform'}")


def _cells(kind: Compared) -> list[str]:
    same, tokens = f"{kind.identical} of {kind.rows}", f"{kind.equal_tokens} of {kind.tokens}"
    if kind.kind == "teacher-forced":
        same, tokens = "-", f"{kind.equal_tokens} scored"
    figures = (number(kind.metrics[metric]) for metric in _SHOWN)
    return [f"[{COLOURS[kind.level]}]{kind.level}[/]", same, tokens, *figures]


def _show_causes(screen: Screen, causes: Sequence[Cause]) -> None:
    screen.say("\n[bold]settings that differ and can change tokens or logprobs[/], the most likely cause first")
    for cause in causes:
        screen.say(f"[bold]{line(cause.name)}[/]: A {_value(cause.a)}, B {_value(cause.b)}", indent=2)
        screen.say(f"[dim]{cause.concern}: {line(cause.why)}[/]", indent=4, hang=0)


def _show_differences(screen: Screen, found: Comparison) -> None:
    causes = {cause.name for cause in found.causes}
    others = [change for change in found.effective if change.name not in causes]
    groups = {
        "versions": found.versions,
        "settings of the configuration": found.settings,
        "settings of the engine": [change for change in others if change.missing is None],
    }
    single = [_single(others, missing, has) for missing, has in (("a", "only B has"), ("b", "only A has"))]
    if not any((*groups.values(), *single, found.quirks)):
        return
    screen.say("\n[bold]other differences[/]")
    for title, changes in groups.items():
        if changes:
            screen.say(title, indent=2)
            screen.entries([(line(change.name), _sides(change)) for change in changes], indent=4)
    for change in found.quirks:
        screen.say(f"quirk {line(change.name)}: in force only in {'B' if change.missing == 'a' else 'A'}", indent=2)
    for text in filter(None, single):
        screen.say(text, indent=2)


def _single(changes: Sequence[Change], missing: str, has: str) -> str:
    names = [change.name for change in changes if change.missing == missing]
    return f"settings of the engine that {has}: {line(listed(names))}" if names else ""


def _sides(change: Change) -> str:
    a, b = ("-" if change.missing == side else _value(value) for side, value in (("a", change.a), ("b", change.b)))
    return f"A {a}, B {b}"


def _value(value: Any) -> str:
    text = plain(value)
    return line(text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…")
