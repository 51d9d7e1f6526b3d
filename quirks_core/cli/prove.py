"""``quirks prove``: runs the evidence of quirks with and without them, and says which are still needed here."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from quirks_core.cli.numbers import seconds
from quirks_core.cli.screen import Screen
from quirks_core.errors import UsageError
from quirks_core.loaded import Loaded
from quirks_core.registry import Registry
from quirks_core.testing.proof import Conclusion, Finding, Proof, Report
from quirks_core.testing.prove import TIMEOUT_S, number_of_runs, prove

_COLOURS = {Conclusion.NEEDED: "green", Conclusion.NOT_NEEDED: "bold red", Conclusion.INCONCLUSIVE: "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `run_prove`."""
    parser.add_argument("ids", nargs="*", metavar="ID", help="the quirks to prove")
    parser.add_argument("--all", action="store_true", help="prove every installed quirk")
    parser.add_argument("--timeout", metavar="S", type=seconds, default=TIMEOUT_S, help="time limit of one run (%(default)g s)")
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the report as JSON")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the report as Markdown")


def run_prove(options: argparse.Namespace) -> int:
    """Proves quirks; 1 if one is not needed, contradicts its own evidence, or has a paired run that did not decide."""
    for file in filter(None, (options.output, options.markdown)):
        _check_writable(file)
    items = _chosen(options, Registry.load())
    # With --json standard output holds the JSON alone.
    console = Screen(stderr=options.json)
    report = Report.of(_proofs(items, options.timeout, console))
    if options.json:
        print(_as_json(report))
    else:
        _show(console, report)
    if options.output:
        options.output.write_text(_as_json(report) + "\n", encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(report.markdown(), encoding="utf-8")
    return 1 if any(proof.calls_for_action for proof in report.proofs) else 0


def _chosen(options: argparse.Namespace, registry: Registry) -> list[Loaded]:
    if bool(options.ids) is options.all:
        raise UsageError("name the quirks to prove, or give --all, and not both")
    return list(registry.loaded) if options.all else [registry.find(name) for name in dict.fromkeys(options.ids)]


def _proofs(items: Iterable[Loaded], timeout_s: float, console: Console) -> list[Proof]:
    items = list(items)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="quirks-lab-") as folder,
        Progress(*columns, console=console, transient=True) as bar,
    ):
        task = bar.add_task("", total=sum(map(number_of_runs, items)))
        proofs: list[Proof] = []
        done = 0
        for item in items:
            run = count(done)

            def tell(text: str, run: Iterator[int] = run) -> None:
                bar.update(task, description=escape(text), completed=next(run))

            proofs.append(prove(item, Path(folder), timeout_s=timeout_s, tell=tell))
            done += number_of_runs(item)
            bar.update(task, completed=done)  # some runs may have been left out
            _say(console, proofs[-1])
    return proofs


def _say(console: Console, proof: Proof) -> None:
    console.print(
        f"[{_COLOURS[proof.conclusion]}]{proof.conclusion}[/] {escape(proof.id)}: {escape(proof.reason)}",
        highlight=False,
        soft_wrap=True,
    )


def _show(console: Console, report: Report) -> None:
    """Prints what each piece of evidence saw with and without its quirk, side by side."""
    versions = ", ".join(f"{name} {text}" for name, text in report.versions.items())
    table = Table(
        title="evidence, with and without each quirk",
        caption=f"{report.date}; platform {report.platform or 'unknown'}; {versions}",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("quirk, and what is looked at", "conclusion", "with the quirk", "without it"):
        table.add_column(heading, overflow="fold")
    for proof in report.proofs:
        for item in proof.findings:
            table.add_row(*_row(proof, item))
        table.add_section()
    if table.row_count:
        console.print(table)


def _row(proof: Proof, item: Finding) -> Iterable[str]:
    yield f"{escape(proof.id)}\n[dim]{escape(item.measure)}[/]"
    yield f"[{_COLOURS[item.conclusion]}]{item.conclusion}[/]\n[dim]{item.kind}[/]"
    for run in (item.with_quirk, item.without_quirk):
        yield f"{escape(str(run))}\n[dim]{run.seconds:.0f} s[/]" if run else "-"


def _as_json(report: Report) -> str:
    return json.dumps(report.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False)


def _check_writable(file: Path) -> None:
    """Finds out before the work, not after it."""
    try:
        with file.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
