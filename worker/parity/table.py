"""The report in a terminal of 80 columns; it says the same without colours."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from worker.parity.figures import Level, bound, crossed, label, level_of, limits_of, measured, number, visible
from worker.parity.records import Attribution, Report, Result
from worker.parity.summary import Tried, changes, headline, state_of, tried

#: Crossed limits that are listed of one scenario.
_CROSSED = 3
#: The metrics for which there is room.
_METRICS = ("mean_abs_delta", "max_abs_delta", "mean_exp_abs_delta", "mean_abs_dprob", "kl_k3")
_COLOURS: dict[Level, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_MARKS: dict[Level | None, str] = {"warn": "!", "fail": "✗"}
_EFFECTS = {"restores": "green", "worsens": "bold red", "moves": "yellow", "none": "dim", "error": "dim"}


def show_report(console: Console, report: Report) -> None:
    """Prints a report: scenarios, what crossed a limit, the ladder, what covers it, and the verdict at the end.

    Args:
        console: Where to print.
        report: The report.
    """
    _show_scenarios(console, report)
    for result in report.results:
        _show_reasons(console, result)
    if report.ladder:
        _show_ladder(console, tried(report))
    for item in report.attributions:
        _show_attribution(console, item)
    for warning in report.warnings:
        console.print(f"[yellow]warning:[/] {_text(warning)}", soft_wrap=True)
    said = headline(report)
    console.print(f"[{_COLOURS[said.level]}]{_text(said.verdict)}[/] {_text(said.advice)}", soft_wrap=True, highlight=False)


def _show_scenarios(console: Console, report: Report) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    origin = f"{versions}; {report.platform}; thresholds {report.profile}; plan {report.plan[:12]}"
    table = Table(
        title=f"parity of {_text(report.model)} ({_text(report.model_type)})",
        caption=_text(origin),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 0, 0, 0),
        show_footer=True,
    )
    results = report.results
    table.add_column("\nscenario", footer="limit", overflow="fold")
    table.add_column("\nresult", no_wrap=True)
    for metric in _METRICS:
        heading = label(metric).replace(" ", "\n", 1)
        table.add_column(
            heading, footer="\n".join(dict.fromkeys(map(bound, limits_of(results, metric)))), justify="right", no_wrap=True
        )
    for result in results:
        colour = _COLOURS[result.level] if result.status != "skipped" else "dim"
        table.add_row(_text(result.scenario), f"[{colour}]{_state(result)}[/]", *(_cell(result, metric) for metric in _METRICS))
    console.print(table)
    if any(not result.gates for result in measured(report)):
        console.print("(…): for information, the configuration rules it out", style="dim")


def _state(result: Result) -> str:
    if result.status != "measured":
        return result.status
    return result.level if result.gates else f"({result.level})"


def _cell(result: Result, metric: str) -> str:
    if result.status != "measured" or metric not in result.metrics:
        return ""
    level = level_of(result, metric)
    text = f"{number(result.metrics[metric])}{_MARKS.get(level, ' ')}"
    return f"[{_COLOURS[level]}]{text}[/]" if level in ("warn", "fail") else text


def _show_reasons(console: Console, result: Result) -> None:
    name = _text(result.scenario)
    if result.status != "measured":
        console.print(f"{name}: {result.status}: {_text(result.reason)}", soft_wrap=True, highlight=False)
    over = crossed(result)
    for verdict in over[:_CROSSED]:
        limit = f"{number(verdict.value)}, limit {bound(verdict)}"
        level = f"[{_COLOURS[verdict.level]}]{verdict.level}[/]"
        text = f"{name}: {level}: {_text(verdict.metric)} {limit} ({_text(verdict.threshold)})"
        console.print(text, soft_wrap=True, highlight=False)
    if len(over) > _CROSSED:
        console.print(f"{name}: and {len(over) - _CROSSED} more", soft_wrap=True, highlight=False)


def _show_ladder(console: Console, ladder: list[Tried]) -> None:
    table = Table(
        title="ladder: one setting changed at a time", title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0
    )
    table.add_column("setting", overflow="fold", ratio=5)
    table.add_column("metric", overflow="fold", ratio=3)
    table.add_column("before", justify="right", no_wrap=True)
    table.add_column("after", justify="right", no_wrap=True)
    table.add_column("effect", overflow="fold", ratio=4)
    for item in ladder:
        step = item.step
        colour = _EFFECTS[item.effect]
        values = (number(item.before), number(item.after)) if item.metric else ("", "")
        metric = f"{_text(label(item.metric))}\n{_text(item.scenario)}" if item.metric else ""
        table.add_row(
            "\n".join(f"{escape(name)}\n{escape(old)} → {escape(new)}" for name, old, new in changes(step)),
            metric,
            *values,
            f"[{colour}]{'not tried: ' if item.effect == 'error' else ''}{_text(item.says)}[/]",
        )
    console.print()
    console.print(table)


def _show_attribution(console: Console, item: Attribution) -> None:
    setting = "; ".join(f"{escape(name)}: {escape(old)} → {escape(new)}" for name, old, new in changes(item))
    values = f"{number(item.value_before)} → {number(item.value_after)}"
    console.print()
    console.print(f"[bold]{setting}[/]", soft_wrap=True, highlight=False)
    console.print(f"  {_text(item.metric)} in {_text(item.scenario)}: {values}", soft_wrap=True, highlight=False)
    for quirk in item.quirks:
        switch = f". To have it: {_text(quirk.switch)}" if quirk.switch else ""
        text = f"  quirk {_text(quirk.id)} does so; {_text(state_of(quirk))}: {_text(quirk.because)}{switch}"
        console.print(text, soft_wrap=True, highlight=False)
    if item.skeleton or (item.restores and not item.quirks):
        console.print(f"  no quirk does so for this run{'; one could begin like this:' if item.skeleton else ''}")
    if item.skeleton:
        # As it is, so that it can be copied.
        lines = "\n".join(map(visible, item.skeleton.splitlines()))
        console.print(lines, soft_wrap=True, markup=False, highlight=False, emoji=False)


def _text(text: str) -> str:
    return escape(visible(text))
