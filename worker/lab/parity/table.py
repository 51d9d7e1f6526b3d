"""The report in a terminal of 80 columns; it reads the same without colours."""

from __future__ import annotations

from rich.text import Text

from quirks_core.cli.screen import Screen, line
from worker.lab.parity.notation import bound, label, number, visible
from worker.lab.parity.records import Attribution, Level, Report, Result, worst_level
from worker.lab.parity.summary import Tried, changes, crossed, headline, limits_of, state_of, tried, value_of

#: Crossed limits that are listed of one scenario.
_CROSSED = 3
#: The metrics for which there is room.
_METRICS = ("mean_abs_delta", "max_abs_delta", "mean_exp_abs_delta", "mean_abs_dprob", "kl_k3")
COLOURS: dict[Level, str] = {"ok": "green", "warn": "yellow", "rounding": "yellow", "fail": "bold red"}
_MARKS: dict[Level, str] = {"ok": " ", "warn": "!", "rounding": "≈", "fail": "✗"}
_EFFECTS = {"restores": "green", "worsens": "bold red", "moves": "yellow", "none": "dim", "error": "dim"}


def show_report(screen: Screen, report: Report) -> None:
    """Prints a report: scenarios, crossed limits, the ablation with the quirks that cover it, and the verdict at the end."""
    _show_scenarios(screen, report)
    for result in report.results:
        for reason in _reasons(result):
            screen.say(f"{line(result.scenario)}: {reason}")
    if report.steps:
        screen.say("\n[bold]ablation[/]: one setting changed at a time")
        for item in tried(report):
            _show_step(screen, item)
    for cause in report.attributions:
        _show_attribution(screen, cause)
    for warning in report.warnings:
        screen.say(f"[yellow]warning:[/] {line(warning)}")
    head = headline(report)
    screen.print()
    screen.say(f"[{COLOURS[head.level]}]{line(head.verdict)}[/] {line(head.advice)}")


def _show_scenarios(screen: Screen, report: Report) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    screen.say(f"parity of [bold]{line(report.model)}[/] ({line(report.model_type)})")
    screen.say(f"[dim]{line(f'{versions}; {report.platform}; thresholds {report.profile}; plan {report.plan[:12]}')}[/]")
    screen.print()
    rows = [
        (line(result.scenario), [_state(result), *(_cell(result, metric) for metric in _METRICS)]) for result in report.results
    ]
    screen.grid("scenario", ["result", *(line(label(metric)) for metric in _METRICS)], [*rows, *_limits(report)])
    if any(not result.gates for result in report.measured):
        screen.say("[dim](…): for information only; the configuration excludes this case[/]")


def _state(result: Result) -> str:
    colour = COLOURS[result.level] if result.status != "skipped" else "dim"
    state = result.status if result.status != "measured" else result.level if result.gates else f"({result.level})"
    return f"[{colour}]{state}[/]"


def _limits(report: Report) -> list[tuple[str, list[str]]]:
    """Rows with the limits of each metric below its figures; a metric can have several."""
    columns = [list(dict.fromkeys(map(bound, limits_of(report.results, metric)))) for metric in _METRICS]
    rows = range(max(map(len, columns), default=0))
    cells = [[column[row] if row < len(column) else "" for column in columns] for row in rows]
    return [("limit" if not row else "", ["", *(f"[dim]{cell}[/]" for cell in cells[row])]) for row in rows]


def _cell(result: Result, metric: str) -> str:
    if result.status != "measured" or metric not in result.metrics:
        return ""
    level = worst_level(result.verdicts, metric)
    text = f"{value_of(result, metric)}{_MARKS[level]}"
    return text if level == "ok" else f"[{COLOURS[level]}]{text}[/]"


def _reasons(result: Result) -> list[str]:
    lines = [f"{result.status}: {line(result.reason)}"] if result.status != "measured" else []
    over = crossed(result.verdicts)
    for verdict in over[:_CROSSED]:
        limit = f"{number(verdict.value, verdict.limit)}, limit {bound(verdict)}"
        level = f"[{COLOURS[verdict.level]}]{verdict.level}[/]"
        lines.append(f"{level}: {line(verdict.metric)} {limit} ({line(verdict.threshold)})")
    return [*lines, f"and {len(over) - _CROSSED} more"] if len(over) > _CROSSED else lines


def _show_step(screen: Screen, item: Tried) -> None:
    setting = "; ".join(f"{line(name)}: {line(old)} → {line(new)}" for name, old, new in changes(item.step))
    screen.say(setting, indent=2, hang=4)
    effect = f"[{_EFFECTS[item.effect]}]{'not tried: ' if item.effect == 'error' else ''}{line(item.says)}[/]"
    values = f"{number(item.before)} → {number(item.after)}"
    where = f" ({line(label(item.metric))} in {line(item.scenario)}: {values})" if item.metric else ""
    screen.say(f"{effect}{where}", indent=4)


def _show_attribution(screen: Screen, item: Attribution) -> None:
    screen.print()
    screen.say("; ".join(f"[bold]{line(name)}: {line(old)} → {line(new)}[/]" for name, old, new in changes(item)))
    values = f"{number(item.value_before)} → {number(item.value_after)}"
    screen.say(f"{line(item.metric)} in {line(item.scenario)}: {values}", indent=2)
    for quirk in item.quirks:
        switch = f". To activate it: {line(quirk.switch)}" if quirk.switch else ""
        screen.say(f"quirk {line(quirk.id)} sets it; {line(state_of(quirk))}: {line(quirk.because)}{switch}", indent=2)
    if item.skeleton or (item.restores and not item.quirks):
        screen.say(f"no quirk sets it for this run{'; a new one could start like this:' if item.skeleton else ''}", indent=2)
    if item.skeleton:  # unwrapped, so that it can be copied
        screen.print(Text("\n".join(map(visible, item.skeleton.splitlines()))), soft_wrap=True)
