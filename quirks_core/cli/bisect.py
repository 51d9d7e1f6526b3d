"""``quirks bisect``: which quirks explain that a command fails, or that it passes."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from quirks_core.base import child_process
from quirks_core.base.errors import UsageError
from quirks_core.cli.command import Command
from quirks_core.cli.delta_debugging import Finding, bisect
from quirks_core.cli.numbers import seconds
from quirks_core.cli.options import plan_for, plan_options
from quirks_core.cli.screen import Screen, line
from quirks_core.plan.records import State
from quirks_core.plan.switches import DISABLE_VARIABLE, FORCE_VARIABLE, SwitchNames

_STANDARD_ERROR = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `run_bisect` needs besides the options that describe a run."""
    parser.add_argument(
        "--timeout", metavar="S", type=seconds, help="time limit of one run of CMD; a run that exceeds it fails"
    )
    parser.add_argument("--verbose", action="store_true", help="show CMD's output instead of keeping it in log files")
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
    console = Screen(stderr=options.json)
    logs = None if options.verbose else Path(tempfile.mkdtemp(prefix="quirks-bisect-"))
    command = TestedCommand(
        options.cmd, SwitchNames(options.disable, options.force), options.timeout, logs, console, len(names)
    )
    try:
        finding = bisect(names, command)
    except UsageError:
        if logs:
            shutil.rmtree(logs)
        raise
    except KeyboardInterrupt:
        command.print_folder()
        raise
    if options.json:
        print(json.dumps(_record(finding, command), indent=2, sort_keys=True))
    else:
        console.say(f"[bold]{line(finding)}[/]")
    command.print_folder()
    return 0 if finding.explained else 1


def candidates(options: argparse.Namespace) -> list[str]:
    """Returns the ids to try: the quirks in force for the run that the options describe, or all that are installed.

    Raises:
        UsageError: The options describe no run: something is wrong with them, or they name no model.
    """
    if options.model or options.config or options.purpose or options.set or options.assume:
        plan = plan_for(options)
        # What an active quirk supersedes comes into force when that one is off.
        return [verdict.id for verdict in plan.verdicts if verdict.state in (State.ACTIVE, State.SUPERSEDED)]
    making = plan_options(options)
    registry = making.registry()
    registry.check_names(making.switches)
    return [item.quirk.id for item in registry.loaded if (switch := making.switches.of(item)) is None or switch.on]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the command.

    Attributes:
        disabled: The candidates that were disabled, by id.
        status: Its exit status; the negative number of the signal that ended it; None if it exceeded the time limit.
        seconds: How long it took.
        log: File with its output; None if that was shown.
    """

    disabled: tuple[str, ...]
    status: int | None
    seconds: float
    log: str | None

    @property
    def passes(self) -> bool:
        """It exited with 0."""
        return self.status == 0

    def __str__(self) -> str:
        if self.status is None:
            return "fails (time limit)"
        if self.status < 0:
            return f"fails ({signal.Signals(-self.status).name})"
        return "passes" if self.passes else f"fails (exit status {self.status})"


@dataclass(slots=True)
class TestedCommand:
    """A command that can be run with quirks disabled.

    Attributes:
        arguments: The command and its arguments.
        names: What is disabled and forced in every run.
        timeout: Time limit of one run in seconds; None for none.
        logs: Folder for a log file of each run; None shows the output.
        console: Where progress is shown.
        total: Number of candidates.
        runs: The runs so far.
    """

    arguments: Sequence[str]
    names: SwitchNames
    timeout: float | None
    logs: Path | None
    console: Screen
    total: int
    runs: list[Run] = field(default_factory=list)

    def __call__(self, disabled: frozenset[str]) -> bool:
        """Runs the command with these quirks disabled; True if it passes.

        Raises:
            UsageError: The command cannot be started.
        """
        number = len(self.runs) + 1
        what = f"run {number}, {len(disabled)} of {self.total} quirks disabled"
        log = self.logs / f"{number:03}.log" if self.logs else None
        start = time.monotonic()
        with self.console.status(what) if log else contextlib.nullcontext():
            status = self._run(environment(os.environ, self.names, disabled), log)
        run = Run(tuple(sorted(disabled)), status, round(time.monotonic() - start, 3), str(log) if log else None)
        self.runs.append(run)
        self.console.say(f"{what}: {run} after {run.seconds:.1f} s")
        return run.passes

    def print_folder(self) -> None:
        """Prints the folder of the output."""
        if self.logs:
            self.console.say(f"output of every run: {line(self.logs)}")

    def _run(self, variables: Mapping[str, str], log: Path | None) -> int | None:
        with log.open("wb", buffering=0) if log else contextlib.nullcontext(_STANDARD_ERROR) as output:
            if not isinstance(output, int):
                disabled = f"{DISABLE_VARIABLE}={variables.get(DISABLE_VARIABLE, '')}"
                output.write(f"# {disabled} {shlex.join(self.arguments)}\n".encode())
            try:
                return child_process.run(self.arguments, environ=variables, output=output, limit_s=self.timeout)
            except (OSError, ValueError) as error:  # ValueError: a null character
                reason = getattr(error, "strerror", None) or error
                raise UsageError(f"command {self.arguments[0]!r} cannot be started: {reason}") from None


def environment(variables: Mapping[str, str], names: SwitchNames, disabled: Iterable[str]) -> dict[str, str]:
    """Returns the environment of a run with quirks disabled.

    Args:
        variables: The environment as it is.
        names: Names to disable and to force in every run; they beat those of the environment.
        disabled: Ids to disable in this run; they beat both.
    """
    switches = dict.fromkeys(_listed(variables.get(DISABLE_VARIABLE, "")), DISABLE_VARIABLE)
    switches |= dict.fromkeys(_listed(variables.get(FORCE_VARIABLE, "")), FORCE_VARIABLE)
    switches |= dict.fromkeys(names.force, FORCE_VARIABLE) | dict.fromkeys(names.disable, DISABLE_VARIABLE)
    switches |= dict.fromkeys(sorted(disabled), DISABLE_VARIABLE)
    changed = dict(variables)
    for variable in (DISABLE_VARIABLE, FORCE_VARIABLE):
        changed.pop(variable, None)
        if listed := [name for name, where in switches.items() if where == variable]:
            changed[variable] = ",".join(listed)
    return changed


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _record(finding: Finding, command: TestedCommand) -> dict[str, object]:
    return {
        **finding.model_dump(mode="json"),
        "explained": finding.explained,
        "summary": str(finding),
        "command": list(command.arguments),
        "runs": [{**asdict(run), "passes": run.passes} for run in command.runs],
        "logs": str(command.logs) if command.logs else None,
    }


COMMAND = Command("find the quirks that change how a command ends", run_bisect, add_arguments, describes_run=True)
