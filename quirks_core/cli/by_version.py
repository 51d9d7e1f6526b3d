"""``quirks plan --vllm A,B,…``: which quirks apply to a run on which versions of vLLM."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence

from packaging.version import Version

from quirks_core.base.errors import UsageError, shown
from quirks_core.base.json_values import canonical
from quirks_core.base.record import Record
from quirks_core.cli.options import plan_options
from quirks_core.cli.screen import Screen, line, lines
from quirks_core.configuration.config import GenerationConfig
from quirks_core.declaration.flags import Kind
from quirks_core.facts.context import RunContext
from quirks_core.plan.formats import supply
from quirks_core.plan.records import Note, NoteKind, Plan, Refusal, State
from quirks_core.plan.summary import in_one_line
from quirks_core.plan.switches import Switches
from quirks_core.plugins.registry import Registry

ENGINE = "vllm"
#: How a state is shown, and its text in the legend.
_LEGEND = {
    "active": ("[green]active[/]", "concerns the run on that version"),
    "dormant": ("[cyan]dormant[/]", "would, but that version is not affected"),
    "unknown": ("[yellow]unknown[/]", "a fact is missing; the quirk does nothing there"),
    "disabled": ("[yellow]off[/]", "switched off"),
    "superseded": ("[yellow]replaced[/]", "another quirk supersedes it"),
    "not_examined": ("[dim]unexamined[/]", "may concern the run, but nobody examined that version; off there"),
    "not_matched": ("[dim].[/]", "concerns other models or configurations"),
}


class Cell(Record):
    """The state of a quirk on one version, with the reason."""

    state: State
    because: str


class Row(Record):
    """A quirk, with a cell for each version."""

    id: str
    title: str
    flag: str
    kind: Kind
    distribution: str
    cells: dict[str, Cell]


class Column(Record):
    """The run on one version.

    Attributes:
        version: The version of vLLM, as it was given.
        digest: Digest of the plan.
        refusals: Why the run is refused there; empty if it is not.
        warnings: The plan's warnings.
        undecided: The missing facts, each with the quirks that are undecided without it.
    """

    version: str
    digest: str
    refusals: tuple[Refusal, ...]
    warnings: tuple[Note, ...]
    undecided: dict[str, tuple[str, ...]]


class Matrix(Record):
    """The quirks that apply to one run, by version.

    Attributes:
        model: Name of the model.
        model_type: Its ``model_type``.
        purpose: Purpose of the run.
        columns: The versions, in the order they were given.
        rows: The quirks by id.
        left_out: Number of quirks without a row, because they concern the run on no version.
    """

    model: str
    model_type: str | None
    purpose: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    left_out: int = 0

    def without_strangers(self) -> Matrix:
        """Returns the matrix without the quirks that are matched on no version."""
        rows = tuple(row for row in self.rows if any(cell.state is not State.NOT_MATCHED for cell in row.cells.values()))
        return self.model_copy(update={"rows": rows, "left_out": self.left_out + len(self.rows) - len(rows)})


def parse_versions(texts: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Reads comma-separated versions.

    Returns:
        The versions as they were given, in order; and those left out because an equal one came before.

    Raises:
        UsageError: One is not a version.
    """
    seen: dict[Version, str] = {}
    again: list[str] = []
    for text in (part.strip() for item in texts for part in item.split(",")):
        try:
            version = Version(text)
        except ValueError:  # InvalidVersion, or a number of thousands of digits
            raise UsageError(f"--vllm: {shown(text, 100)} is not a version; write for example --vllm 0.26,0.32.0") from None
        if version in seen:
            again.append(text)
        else:
            seen[version] = text
    return tuple(seen.values()), tuple(again)


def make_matrix(registry: Registry, context: RunContext, versions: Sequence[str], switches: Switches) -> Matrix:
    """Resolves one run for several versions of vLLM.

    Args:
        registry: The quirks.
        context: The facts of the run; the version of vLLM in it does not matter.
        versions: The versions; each counts as assumed.
        switches: What the user switched on or off.

    Raises:
        UsageError: A switch names nothing.
    """
    plans = {version: registry.resolve(_on(context, version), switches) for version in versions}
    states = {version: {verdict.id: verdict for verdict in plan.verdicts} for version, plan in plans.items()}
    first = next(iter(plans.values()))
    return Matrix(
        model=context.model.name,
        model_type=context.model.model_type,
        purpose=context.purpose,
        columns=tuple(_column(version, plan) for version, plan in plans.items()),
        rows=tuple(
            Row(
                id=verdict.id,
                title=verdict.title,
                flag=verdict.flag,
                kind=verdict.kind,
                distribution=f"{verdict.distribution} {verdict.version}",
                cells={
                    version: Cell(state=states[version][verdict.id].state, because=states[version][verdict.id].because)
                    for version in versions
                },
            )
            for verdict in first.verdicts  # every plan of a registry has the same quirks
        ),
    )


def _column(version: str, plan: Plan) -> Column:
    return Column(version=version, digest=plan.digest, refusals=plan.refusals, warnings=plan.warnings, undecided=plan.undecided)


def _on(context: RunContext, version: str) -> RunContext:
    changed = {"packages": {**context.packages, ENGINE: version}, "assumed": context.assumed | {ENGINE}}
    return context.model_copy(update=changed)


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
    context = RunContext.gather(config, fact_names=registry.fact_names, assume=making.assume)
    matrix = make_matrix(registry, context, versions, making.switches)
    if not options.verbose:
        matrix = matrix.without_strangers()
    notes = [f"--vllm {text} is given already, and left out" for text in again]
    if options.json:
        print(canonical({**matrix.model_dump(mode="json"), "notes": notes}, indent=2))
    else:
        _show(Screen(), matrix, notes, verbose=options.verbose)
    return 1 if any(column.refusals for column in matrix.columns) else 0


def _show(screen: Screen, matrix: Matrix, notes: Iterable[str], *, verbose: bool) -> None:
    screen.say(f"{line(matrix.model)} ({line(matrix.model_type)}), purpose {line(matrix.purpose)}, by version of vLLM")
    rows = [(line(row.id), [_LEGEND[cell.state][0] for cell in row.cells.values()]) for row in matrix.rows]
    rows.append(("the run", ["[bold red]refused[/]" if column.refusals else "ok" for column in matrix.columns]))
    screen.grid("quirk", [line(column.version) for column in matrix.columns], rows)
    seen = {cell.state for row in matrix.rows for cell in row.cells.values()}
    for sign, (word, meaning) in _LEGEND.items():
        if sign in seen:
            screen.say(f"[dim]{word}: {meaning}[/]")
    if matrix.left_out:
        screen.say(f"[dim]{matrix.left_out} other quirks concern the run on none of them (--verbose)[/]")
    for note in notes:
        screen.say(f"note: {line(note)}")
    texts = ((text, column) for column in matrix.columns for text in _warnings(column, verbose=verbose))
    _show_grouped(screen, "[yellow]warning[/]", texts)
    refusals = ((str(refusal), column) for column in matrix.columns for refusal in column.refusals)
    _show_grouped(screen, "[bold red]refused[/]", refusals)


def _warnings(column: Column, *, verbose: bool) -> Iterator[str]:
    """What is undecided is one line, or one for each reason."""
    notes = [note for note in column.warnings if note.kind is not NoteKind.UNEXAMINED]  # the table shows it
    yield from (note.text for note in notes if verbose or note.kind is not NoteKind.UNDECIDED or not note.about)
    yield from filter(None, [in_one_line({} if verbose else column.undecided, supply(column.undecided))])


def _show_grouped(screen: Screen, label: str, found: Iterable[tuple[str, Column]]) -> None:
    """Prints each text once, with the versions that it holds for."""
    versions: dict[str, list[str]] = {}
    for text, column in found:
        versions.setdefault(text, []).append(column.version)
    for text, where in versions.items():
        screen.say(f"{label} on {line(', '.join(dict.fromkeys(where)))}: {lines(text)}")
