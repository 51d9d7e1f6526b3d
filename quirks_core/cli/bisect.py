"""``quirks bisect``: which quirks explain that a command fails, or that it passes."""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quirks_core.base import child_process
from quirks_core.base.errors import UsageError
from quirks_core.base.record import Record
from quirks_core.cli.command import Command, print_json
from quirks_core.cli.numbers import seconds
from quirks_core.cli.options import describes_run, load_config, plan_options
from quirks_core.plan.records import State
from quirks_core.plan.switches import DISABLE_VARIABLE, FORCE_VARIABLE, SwitchNames
from quirks_core.plugins.planning import make_plan
from quirks_core.reporting.terminal import Screen, line

#: Runs the command with these quirks disabled; True if it passes.
Attempt = Callable[[frozenset[str]], bool]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `run_bisect` needs besides the options that describe a run."""
    parser.add_argument(
        "--timeout", metavar="S", type=seconds, help="time limit of one run of CMD; a run that exceeds it fails"
    )
    parser.add_argument("cmd", nargs="+", metavar="CMD", help="the command and its arguments, after --")


def run_bisect(options: argparse.Namespace) -> int:
    """Finds the quirks whose disabling changes how a command ends; 0 if it finds them, 1 if not.

    The command passes if it exits with 0; any other status, a signal and the time limit are failures. It gets the ids to
    disable in MODEL_QUIRKS_DISABLE, added to what is there.
    """
    if shutil.which(options.cmd[0]) is None:
        raise UsageError(f"command {options.cmd[0]!r} is not found, or is not executable")
    names = candidates(options)
    # With --json standard output holds the JSON alone.
    console, logs = Screen(stderr=options.json), Path(tempfile.mkdtemp(prefix="quirks-bisect-"))
    command = _Command(options, logs, console, len(names))
    try:
        outcome = bisect(names, command)
    except UsageError:
        shutil.rmtree(logs)
        raise
    except KeyboardInterrupt:
        console.say(f"output of every run: {line(logs)}")
        raise
    if options.json:
        found = {**outcome.model_dump(mode="json"), "explained": outcome.explained, "summary": str(outcome)}
        print_json({**found, "command": options.cmd, "logs": str(logs), "runs": command.runs})
    else:
        console.say(f"[bold]{line(outcome)}[/]")
    console.say(f"output of every run: {line(logs)}")
    return 0 if outcome.explained else 1


def candidates(options: argparse.Namespace) -> list[str]:
    """Returns the ids to try: the quirks in force for the run that the options describe, or all that are installed.

    Raises:
        UsageError: The options describe no run: something is wrong with them, or they name no model.
    """
    if describes_run(options, with_command=False):
        config = load_config(options)
        plan = make_plan(config, plan_options(options, config))
        # What an active quirk supersedes comes into force when that one is off.
        return [verdict.id for verdict in plan.verdicts if verdict.state in (State.ACTIVE, State.SUPERSEDED)]
    making = plan_options(options)
    registry = making.registry()
    registry.check_names(making.switches)
    return [item.quirk.id for item in registry.loaded if (switch := making.switches.of(item)) is None or switch.on]


class Outcome(Record):
    """The result of a bisection.

    Attributes:
        candidates: The quirks that were tried.
        passes: The command passes with all candidates enabled; None if it was not run because there is no candidate.
        passes_without: The command passes with all candidates disabled; None as above.
        explanation: A minimal set of quirks: disabling it turns the first outcome into the second, and with one quirk less
            it does not. Other sets may do the same.
        flaky: Repeating the two base runs gave another outcome, so the result is not reliable.
    """

    candidates: tuple[str, ...]
    passes: bool | None = None
    passes_without: bool | None = None
    explanation: tuple[str, ...] = ()
    flaky: bool = False

    @property
    def explained(self) -> bool:
        """Quirks explain the outcome, and the command is not known to be flaky."""
        return bool(self.explanation) and not self.flaky

    def __str__(self) -> str:
        if self.flaky:
            return "the command is flaky: run again with the same quirks, it ends differently"
        if not self.candidates:
            return "no quirk is a candidate: there is nothing to disable"
        if not self.explanation:
            return f"no quirk explains it: the command {'passes' if self.passes else 'fails'} with and without them"
        together = " together" if len(self.explanation) > 1 else ""
        return f"it {'fails' if self.passes else 'passes'} with {' and '.join(self.explanation)} disabled{together}"


def bisect(names: Sequence[str], attempt: Attempt) -> Outcome:
    """Finds which quirks explain a command's outcome, by halves; the two base runs are repeated at the end."""
    if not names:
        return Outcome(candidates=())
    none, everything = frozenset[str](), frozenset(names)
    passes: Attempt = functools.cache(attempt)
    before, after = passes(none), passes(everything)
    size, found = len(names), tuple(names) if before is not after else ()
    while size > 1 and found:
        size, start = (size + 1) // 2, 0
        while start < len(found):
            rest = found[:start] + found[start + size :]
            if rest and passes(frozenset(rest)) is after:
                found = rest
            else:
                start += size
    flaky = attempt(none) is not before or attempt(everything) is not after
    return Outcome(candidates=tuple(names), passes=before, passes_without=after, explanation=found, flaky=flaky)


@dataclass(slots=True)
class _Command:
    """The command, to be run with quirks disabled; each run has a file in the folder of logs."""

    options: argparse.Namespace
    logs: Path
    console: Screen
    total: int
    #: The runs so far; the status is None where the time limit ended one, and negative where a signal did.
    runs: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, disabled: frozenset[str]) -> bool:
        """Runs the command with these quirks disabled; True if it passes.

        Raises:
            UsageError: The command cannot be started.
        """
        words, number = self.options.cmd, len(self.runs) + 1
        what = f"run {number}, {len(disabled)} of {self.total} quirks disabled"
        log, start = self.logs / f"{number:03}.log", time.monotonic()
        environ = environment(os.environ, SwitchNames(self.options.disable, self.options.force), disabled)
        with self.console.status(what), log.open("wb", buffering=0) as output:
            output.write(f"# {DISABLE_VARIABLE}={environ.get(DISABLE_VARIABLE, '')} {shlex.join(words)}\n".encode())
            try:
                status = child_process.run(words, environ=environ, output=output, limit_s=self.options.timeout)
            except (OSError, ValueError) as error:  # ValueError: a null character
                reason = getattr(error, "strerror", None) or error
                raise UsageError(f"command {words[0]!r} cannot be started: {reason}") from None
        took = round(time.monotonic() - start, 3)
        self.runs.append(
            {"disabled": sorted(disabled), "status": status, "passes": status == 0, "seconds": took, "log": str(log)}
        )
        self.console.say(f"{what}: {_ending(status)} after {took:.1f} s")
        return status == 0


def _ending(status: int | None) -> str:
    if status is None or status < 0:
        return f"fails ({'time limit' if status is None else signal.Signals(-status).name})"
    return f"fails (exit status {status})" if status else "passes"


def environment(variables: Mapping[str, str], names: SwitchNames, disabled: Iterable[str]) -> dict[str, str]:
    """Returns an environment with quirks disabled; the names of every run beat those of the environment, and the ids both."""
    given = {name: variables.get(name, "").split(",") for name in (DISABLE_VARIABLE, FORCE_VARIABLE)}
    layers = [*given.items(), (FORCE_VARIABLE, names.force), (DISABLE_VARIABLE, [*names.disable, *sorted(disabled)])]
    switches = {name.strip(): variable for variable, listed in layers for name in listed if name.strip()}
    changed = {name: text for name, text in variables.items() if name not in given}
    for variable in given:
        if listed := [name for name, where in switches.items() if where == variable]:
            changed[variable] = ",".join(listed)
    return changed


COMMAND = Command("find the quirks that change how a command ends", run_bisect, add_arguments, describes_run=True)
