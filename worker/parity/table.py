"""The report in a terminal of 80 columns; it says the same without colours."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from worker.parity.notation import bound, label, number, visible
from worker.parity.records import Attribution, Level, Report, Result, worst_level
from worker.parity.summary import Tried, changes, crossed, headline, limits_of, state_of, tried

#: Crossed limits that are listed of one scenario.
_CROSSED = 3
#: The metrics for which there is room.
_METRICS = ("mean_abs_delta", "max_abs_delta", "mean_exp_abs_delta", "mean_abs_dprob", "kl_k3")
COLOURS: dict[Level, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_MARKS: dict[Level, str] = {"ok": " ", "warn": "!", "fail": "✗"}
_EFFECTS = {"restores": "green", "worsens": "bold red", "moves": "yellow", "none": "dim", "error": "dim"}


def show_report(console: Console, report: Report) -> None:
    """Prints a report: scenarios, what crossed a limit, the ablation, what covers it, and the verdict at the end."""
    _show_scenarios(console, report)
    for result in report.results:
        for line in _reasons(result):
            console.print(f"{_text(result.scenario)}: {line}", soft_wrap=True, highlight=False)
    if report.steps:
        console.print()
        console.print(_ablation(tried(report)))
    for item in report.attributions:
        _show_attribution(console, item)
    for warning in report.warnings:
        console.print(f"[yellow]warning:[/] {_text(warning)}", soft_wrap=True)
    said = headline(report)
    console.print(f"[{COLOURS[said.level]}]{_text(said.verdict)}[/] {_text(said.advice)}", soft_wrap=True, highlight=False)


def _show_scenarios(console: Console, report: Report) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    table = Table(
        title=f"parity of {_text(report.model)} ({_text(report.model_type)})",
        caption=_text(f"{versions}; {report.platform}; thresholds {report.profile}; plan {report.plan[:12]}"),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=0,
        show_footer=True,
    )
    table.add_column("\nscenario", footer="limit", overflow="fold")
    table.add_column("\nresult", no_wrap=True)
    for metric in _METRICS:
        limits = "\n".join(dict.fromkeys(map(bound, limits_of(report.results, metric))))
        table.add_column(label(metric).replace(" ", "\n", 1), footer=limits, justify="right", no_wrap=True)
    for result in report.results:
        colour = COLOURS[result.level] if result.status != "skipped" else "dim"
        state = result.status if result.status != "measured" else result.level if result.gates else f"({result.level})"
        table.add_row(_text(result.scenario), f"[{colour}]{state}[/]", *(_cell(result, metric) for metric in _METRICS))
    console.print(table)
    if any(not result.gates for result in report.measured):
        console.print("(…): for information, the configuration rules it out", style="dim")


def _cell(result: Result, metric: str) -> str:
    if result.status != "measured" or metric not in result.metrics:
        return ""
    level = worst_level(result.verdicts, metric)
    text = f"{number(result.metrics[metric])}{_MARKS[level]}"
    return text if level == "ok" else f"[{COLOURS[level]}]{text}[/]"


def _reasons(result: Result) -> list[str]:
    lines = [f"{result.status}: {_text(result.reason)}"] if result.status != "measured" else []
    over = crossed(result.verdicts)
    for verdict in over[:_CROSSED]:
        limit = f"{number(verdict.value)}, limit {bound(verdict)}"
        level = f"[{COLOURS[verdict.level]}]{verdict.level}[/]"
        lines.append(f"{level}: {_text(verdict.metric)} {limit} ({_text(verdict.threshold)})")
    return [*lines, f"and {len(over) - _CROSSED} more"] if len(over) > _CROSSED else lines


def _ablation(steps: list[Tried]) -> Table:
    table = Table(
        title="ablation: one setting changed at a time", title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0
    )
    for heading, ratio in (("setting", 5), ("metric", 3), ("before", None), ("after", None), ("effect", 4)):
        if ratio:
            table.add_column(heading, overflow="fold", ratio=ratio)
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    for item in steps:
        table.add_row(
            "\n".join(f"{escape(name)}\n{escape(old)} → {escape(new)}" for name, old, new in changes(item.step)),
            f"{_text(label(item.metric))}\n{_text(item.scenario)}" if item.metric else "",
            *((number(item.before), number(item.after)) if item.metric else ("", "")),
            f"[{_EFFECTS[item.effect]}]{'not tried: ' if item.effect == 'error' else ''}{_text(item.says)}[/]",
        )
    return table


def _show_attribution(console: Console, item: Attribution) -> None:
    setting = "; ".join(f"{escape(name)}: {escape(old)} → {escape(new)}" for name, old, new in changes(item))
    values = f"{number(item.value_before)} → {number(item.value_after)}"
    lines = ["", f"[bold]{setting}[/]", f"  {_text(item.metric)} in {_text(item.scenario)}: {values}"]
    for quirk in item.quirks:
        switch = f". To have it: {_text(quirk.switch)}" if quirk.switch else ""
        lines.append(f"  quirk {_text(quirk.id)} does so; {_text(state_of(quirk))}: {_text(quirk.because)}{switch}")
    if item.skeleton or (item.restores and not item.quirks):
        lines.append(f"  no quirk does so for this run{'; one could begin like this:' if item.skeleton else ''}")
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
    if item.skeleton:  # as it is, so that it can be copied
        text = "\n".join(map(visible, item.skeleton.splitlines()))
        console.print(text, soft_wrap=True, markup=False, highlight=False, emoji=False)


def _text(text: str) -> str:
    return escape(visible(text))
