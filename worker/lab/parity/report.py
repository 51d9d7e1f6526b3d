"""The report: in a terminal, and with every figure as one HTML page of the same lines."""

from __future__ import annotations

import io
from pathlib import Path

from quirks_core.reporting.terminal import Screen, line
from worker.lab.parity.metrics import METRICS
from worker.lab.parity.notation import bound, label, number, plain
from worker.lab.parity.records import Attribution, Bin, Level, Report, Result, WorstToken, worst_level
from worker.lab.parity.summary import Tried, changes, crossed, headline, limits_of, state_of, tried

#: Crossed limits that are listed of one scenario.
_CROSSED = 3
#: The metrics for which a terminal has room.
_METRICS = ("mean_abs_delta", "max_abs_delta", "mean_exp_abs_delta", "mean_abs_dprob", "kl_k3")
COLOURS: dict[Level, str] = {"ok": "green", "warn": "yellow", "rounding": "yellow", "fail": "bold red"}
_MARKS: dict[Level, str] = {"ok": " ", "warn": "!", "rounding": "≈", "fail": "✗"}
_EFFECTS = {"restores": "green", "worsens": "bold red", "moves": "yellow", "none": "dim", "error": "dim"}
#: Columns of the page; characters shown before a token.
_COLUMNS, _CONTEXT = 160, 60
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Parity of rollout and trainer</title>
<style>
pre {{ font: 13px/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; padding: 1.5rem; overflow-x: auto; }}
{stylesheet}
</style>
</head>
<body><pre>{code}</pre></body>
</html>
"""


def write_report(report: Report, folder: Path) -> None:
    """Writes ``report.json``, and ``report.html``, which needs and fetches no other file."""
    page = _Page()
    show_report(page, report, whole=True)
    (folder / "report.json").write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(page.export_html(code_format=_PAGE), encoding="utf-8")


class _Page(Screen):
    """Keeps what is printed, for a page."""

    def __init__(self) -> None:
        super(Screen, self).__init__(record=True, file=io.StringIO(), width=_COLUMNS, emoji=False, highlight=False)


def show_report(screen: Screen, report: Report, *, whole: bool = False) -> None:
    """Prints a report: scenarios, crossed limits, the ablation with the quirks that cover it, and the verdict.

    The `whole` of it has every setting and metric, and the breakdowns and worst tokens of each scenario.
    """
    if whole:
        _show_verdict(screen, report)
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
    screen.print()
    if not whole:
        _show_verdict(screen, report)
        return
    _show_metrics(screen, report)
    for result in report.measured:
        _show_tokens(screen, result)
    _show_settings(screen, report)


def _show_verdict(screen: Screen, report: Report) -> None:
    head = headline(report)
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
    if result.status != "measured":
        return ""
    level = worst_level(result.verdicts, metric)
    limits = [verdict.limit for verdict in result.verdicts if verdict.metric == metric]
    text = f"{number(result.metrics[metric], *limits)}{_MARKS[level]}"
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
    screen.say(f"{effect}{f' ({_moved(item.moved, label(item.moved.metric))})' if item.moved else ''}", indent=4)


def _moved(item: Attribution, metric: str) -> str:
    values = f"{number(item.value_before)} → {number(item.value_after)}"
    return f"{line(metric)} in {line(item.scenario)}: {values}"


def _show_attribution(screen: Screen, item: Attribution) -> None:
    screen.print()
    screen.say("; ".join(f"[bold]{line(name)}: {line(old)} → {line(new)}[/]" for name, old, new in changes(item)))
    screen.say(_moved(item, item.metric), indent=2)
    for quirk in item.quirks:
        screen.say(f"quirk {line(quirk.id)} sets it; {line(state_of(quirk))}: {line(quirk.because)}", indent=2)
    if item.is_uncovered:
        screen.say("no quirk sets it for this run; quirks new NAME starts one", indent=2)


# ---- the whole


def _show_metrics(screen: Screen, report: Report) -> None:
    screen.say("\n[bold]every metric in every scenario[/]")
    rows = [(line(label(metric)), [_cell(result, metric) for result in report.measured]) for metric in METRICS]
    screen.grid("metric", [line(result.scenario) for result in report.measured], rows)


def _show_tokens(screen: Screen, result: Result) -> None:
    """Prints a scenario's notes, the differences by position and by probability, and the worst tokens in context."""
    screen.say(f"\n[bold]{line(result.scenario)}[/]: {line(result.title)}")
    notes = [f"{name}: {number(value) if isinstance(value, float) else plain(value)}" for name, value in result.notes.items()]
    screen.say(line("; ".join([f"{number(result.seconds)} s", *notes])))
    for title, bins in (("position", result.by_position), ("probability", result.by_probability)):
        screen.grid(title, ["tokens", "mean Δ", "mean |Δ|", "max |Δ|"], [(line(item.label), _bin(item)) for item in bins])
    headings = ["token id", "sample", "position", "rollout", "trainer", "Δ", "in context"]
    screen.grid("worst token", headings, [(line(token.text or token.token), _token(token)) for token in result.worst])


def _bin(item: Bin) -> list[str]:
    return [str(item.tokens), *map(number, (item.mean_delta, item.mean_abs_delta, item.max_abs_delta))]


def _token(token: WorstToken) -> list[str]:
    place = map(str, (token.token, token.sample, token.position))
    values = map(number, (token.rollout, token.trainer, token.rollout - token.trainer))
    note = f" ({token.note})" if token.note else ""
    return [*place, *values, line(f"{token.before[-_CONTEXT:]}{note}")]


def _show_settings(screen: Screen, report: Report) -> None:
    screen.say("\n[bold]settings in force[/]")
    screen.entries([(line(name), line(plain(value))) for name, value in sorted(report.settings.items())])
    screen.say(f"quirks in force: {line(', '.join(report.active_quirks) or 'none')}; measured on {line(report.date)}")
