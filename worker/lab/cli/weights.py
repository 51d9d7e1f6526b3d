"""``quirks weights``: what running servers have for weights: their ledgers, and the checkpoint that they run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quirks_core.base.errors import UsageError
from quirks_core.cli.command import Command
from quirks_core.reporting.terminal import Screen, line

if TYPE_CHECKING:
    from worker.lab.weights import Weights

_DEFAULT = "http://localhost:8000"
#: Exit code: nothing is wrong, and not all can be compared.
_UNDECIDED = 4
_STATES = {"arrived": "[green]runs[/]", "missing": "[bold red]does not run[/]", "undecided": "[yellow]undecided[/]"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the servers and the checkpoints."""
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="URL|PID",
        default=[_DEFAULT],
        help=f"a running vllm serve, {_DEFAULT} if left out; a process id reads its file of receipts",
    )
    parser.add_argument(
        "--checkpoint",
        nargs="+",
        action="extend",
        default=[],
        type=Path,
        metavar="FOLDER",
        help="compare the weights with a checkpoint's, or find which of several it is (repeatable)",
    )


def run_weights(options: argparse.Namespace) -> int:
    """Shows what servers have; 1 if a ledger warns, or a server runs none of the checkpoints; 4 if that is undecided."""
    from worker.lab.weights import of_process, of_server

    pids = [target for target in options.targets if target.isdigit()]
    if pids and options.checkpoint:
        raise UsageError(f"--checkpoint needs the server's address; the file of receipts of {pids[0]} has no digests by tensor")
    found = [of_process(int(target)) if target in pids else of_server(target, options.checkpoint) for target in options.targets]
    if options.json:
        print(json.dumps([_values(one) for one in found], indent=2, sort_keys=True))
    else:
        screen = Screen()
        for one in found:
            _show(screen, one)
    if any(one.problems for one in found):
        return 1
    return _UNDECIDED if any(one.status == "undecided" for one in found) else 0


def _values(found: Weights) -> dict[str, Any]:
    runs = [match.folder for match in found.matches if match.status == "arrived"]
    return {**found.model_dump(mode="json"), "problems": found.problems, "runs": runs, "status": found.status}


def _show(screen: Screen, found: Weights) -> None:
    label = f", weights {line(repr(found.version))}" if found.version else ""
    screen.say(f"[bold]{line(found.target)}[/]{f': {line(found.model)}' if found.model else ''}{label}")
    count = found.account.updates
    screen.say(f"  ledger: {count} update{'s' * (count != 1)}")
    for one in found.account.lines:
        version = f" {line(repr(one.version))}" if one.version else ""
        screen.say(
            f"  {one.number:>5} {one.way:<8} rank {one.rank}: {one.changed} of {one.held} tensors changed{version} "
            f"[dim]{one.digest}[/]"
        )
    for verdict in found.account.problems:
        screen.say(f"  [{'bold red' if verdict.is_grave else 'yellow'}]{verdict.kind}[/]: {line(verdict.text)}")
    for match in found.matches:
        screen.say(f"  {_STATES[match.status]} {line(match.folder)}: {line(match)}")


COMMAND = Command("show what a running vllm serve has for weights, and which checkpoint they are", run_weights, add_arguments)
