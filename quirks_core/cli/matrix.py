"""``quirks plan --vllm A,B,…``: which quirks apply to a run on which versions of vLLM."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from quirks_core.base.json_values import canonical
from quirks_core.cli.by_version import Column, Matrix, make_matrix
from quirks_core.cli.options import plan_options
from quirks_core.cli.screen import Screen, line, lines
from quirks_core.configuration.config import GenerationConfig
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


def run_matrix(options: argparse.Namespace, config: GenerationConfig, versions: Sequence[str], again: Iterable[str]) -> int:
    """Shows which quirks apply to a run on which versions; 1 if the run is refused on any.

    Args:
        options: Parsed arguments of ``quirks plan``; the first version is assumed in them.
        config: The run.
        versions: The versions.
        again: Versions that were given, and are left out because an equal one came before.
    """
    making = plan_options(options, config)
    registry = making.registry()
    context = RunContext.gather(config, asked=registry.asked, assume=making.assume)
    matrix = make_matrix(registry, context, versions, making.switches)
    if not options.verbose:
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
        screen.say(f"[dim]{matrix.left_out} other quirks concern the run on none of them (--verbose)[/]")
    for note in notes:
        screen.say(f"note: {line(note)}")
    _show_grouped(screen, "[yellow]warning[/]", ((note.text, column) for column in matrix.columns for note in column.warnings))
    refusals = ((str(refusal), column) for column in matrix.columns for refusal in column.refusals)
    _show_grouped(screen, "[bold red]refused[/]", refusals)


def _show_grouped(screen: Screen, label: str, found: Iterable[tuple[str, Column]]) -> None:
    """Prints each text once, with the versions that it holds for."""
    versions: dict[str, list[str]] = {}
    for text, column in found:
        versions.setdefault(text, []).append(column.version)
    for text, where in versions.items():
        screen.say(f"{label} on {line(', '.join(dict.fromkeys(where)))}: {lines(text)}")
