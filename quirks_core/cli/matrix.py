"""``quirks matrix``: which quirks apply to a run on which versions of vLLM."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from quirks_core.base.errors import UsageError
from quirks_core.base.json_values import canonical
from quirks_core.cli.by_version import ENGINE, Column, Matrix, make_matrix, parse_versions
from quirks_core.cli.command import Command
from quirks_core.cli.options import load_config, plan_options
from quirks_core.cli.screen import Screen, line, lines
from quirks_core.facts.context import RunContext
from quirks_core.plan.records import State

#: How a state is shown, and what the legend says of it.
_LEGEND = {
    "active": ("[green]active[/]", "concerns the run on that version"),
    "dormant": ("[cyan]dormant[/]", "would, but that version is not affected"),
    "unknown": ("[yellow]unknown[/]", "a fact is missing; the quirk does nothing there"),
    "disabled": ("[yellow]off[/]", "switched off"),
    "superseded": ("[yellow]replaced[/]", "another quirk supersedes it"),
    "not_matched": ("[dim].[/]", "concerns other models or configurations"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `run_matrix` needs besides the options that describe a run."""
    parser.add_argument(
        "--vllm", metavar="VERSION,…", action="append", required=True, help="versions of vLLM to compare (repeatable)"
    )
    parser.add_argument("--all-quirks", action="store_true", help="show the quirks too that concern the run on no version")


def run_matrix(options: argparse.Namespace) -> int:
    """Shows which quirks apply to a run on which versions; 1 if the run is refused on any."""
    versions, again = parse_versions(options.vllm)
    if any(text.partition("=")[0].strip() == ENGINE for text in options.assume):
        raise UsageError("--assume vllm==… and --vllm contradict each other: give the versions with --vllm")
    config = load_config(options)
    making = plan_options(options, config)
    registry = making.registry()
    context = RunContext.gather(config, asked=registry.asked, assume=[f"{ENGINE}=={versions[0]}", *options.assume])
    matrix = make_matrix(registry, context, versions, making.switches)
    if not options.all_quirks:
        matrix = matrix.without_strangers()
    notes = [f"--vllm {text} is given already, and left out" for text in again]
    if options.json:
        print(canonical({**matrix.model_dump(mode="json"), "notes": notes}, indent=2))
    else:
        _show(Screen(), matrix, notes)
    return 1 if any(column.refusals for column in matrix.columns) else 0


def _show(screen: Screen, matrix: Matrix, notes: Iterable[str]) -> None:
    screen.say(f"{line(matrix.model)} ({line(matrix.model_type)}), purpose {line(matrix.purpose)}, by version of vLLM")
    rows = [(line(row.id), [_LEGEND[cell.state][0] for cell in row.cells.values()]) for row in matrix.rows]
    rows.append(("the run", ["[bold red]refused[/]" if column.refusals else "ok" for column in matrix.columns]))
    screen.grid("quirk", [line(column.version) for column in matrix.columns], rows)
    seen = {cell.state for row in matrix.rows for cell in row.cells.values()}
    for state in State:
        if state in seen:
            screen.say(f"[dim]{_LEGEND[state][0]}: {_LEGEND[state][1]}[/]")
    if matrix.left_out:
        screen.say(f"[dim]{matrix.left_out} other quirks concern the run on none of them (--all-quirks)[/]")
    for note in notes:
        screen.say(f"note: {line(note)}")
    _show_grouped(screen, "[yellow]warning[/]", ((warning, column) for column in matrix.columns for warning in column.warnings))
    refusals = ((str(refusal), column) for column in matrix.columns for refusal in column.refusals)
    _show_grouped(screen, "[bold red]refused[/]", refusals)


def _show_grouped(screen: Screen, label: str, found: Iterable[tuple[str, Column]]) -> None:
    """Prints each text once, with the versions that it holds for."""
    versions: dict[str, list[str]] = {}
    for text, column in found:
        versions.setdefault(text, []).append(column.version)
    for text, where in versions.items():
        screen.say(f"{label} on {line(', '.join(dict.fromkeys(where)))}: {lines(text)}")


COMMAND = Command("show which quirks apply to a run on which versions of vLLM", run_matrix, add_arguments, describes_run=True)
