"""The sweep's command line: ``python -m worker.sweep [KIND …]``, which ``make sweep`` starts for every kind."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from quirks_core import whole_file
from quirks_core.cli.screen import Screen, line
from worker.cli.display import stages
from worker.sweep.models import KINDS
from worker.sweep.page import markdown, unexplained
from worker.sweep.records import Sweep, Verdict
from worker.sweep.rows import TIMEOUT_S, dependencies, make


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the rows that are missing or outdated, and writes the table after each; 1 if a wrong row is not explained."""
    parser = argparse.ArgumentParser(prog="python -m worker.sweep", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; all if none is named")
    parser.add_argument("--anew", action="store_true", help="run also what has been run with these versions")
    parser.add_argument("--render", action="store_true", help="run nothing; write the page from the rows that are there")
    parser.add_argument("--json", action="store_true", help="print the chosen rows as JSON")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="S", help="seconds per engine (%(default)g)")
    parser.add_argument("--output", type=Path, default=Path("docs/sweep.json"), metavar="FILE", help="(%(default)s)")
    parser.add_argument("--markdown", type=Path, default=Path("docs/sweep.md"), metavar="FILE", help="(%(default)s)")
    options = parser.parse_args(arguments)
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"unknown kind {', '.join(sorted(unknown))}")
    console = Screen(stderr=options.json)
    kinds = options.kinds or KINDS
    sweep = Sweep.read(options.output)
    waiting = [kind for kind in kinds if options.anew or not is_recorded(kind, sweep)]
    with stages(console) as tell:
        for kind in () if options.render else waiting:
            row = make(kind, options.timeout, tell)
            sweep = Sweep.read(options.output).with_rows([row])  # another sweep may have written meanwhile
            whole_file.write(options.output, sweep.text())
            whole_file.write(options.markdown, markdown(sweep))
            colour = "green" if row.verdict is Verdict.RIGHT else "yellow"
            console.say(f"[{colour}]{row.verdict}[/] {line(kind)} ({row.seconds:.0f} s) {line(row.run.error)}".rstrip())
    whole_file.write(options.markdown, markdown(sweep))
    chosen = Sweep(rows=tuple(row for row in sweep.rows if row.kind in kinds))
    if options.json:
        sys.stdout.write(chosen.text())
    if missing := unexplained(chosen):
        console.say(f"not explained (worker/sweep/explanations.py): {', '.join(missing)}")
    return 1 if missing else 0


def is_recorded(kind: str, sweep: Sweep) -> bool:
    """Tells whether a sweep has the row of a kind, made with what is installed."""
    found = (row for row in sweep.rows if row.kind == kind and row.verdict is not Verdict.UNFINISHED)
    return any(row.depends == dependencies(kind) for row in found)


if __name__ == "__main__":
    sys.exit(main())
