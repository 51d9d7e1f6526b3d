"""A command of ``quirks``, and where commands come from."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from quirks_core.base.errors import UsageError, words
from quirks_core.base.json_values import SCHEMA, canonical
from quirks_core.facts.installation import HiddenPackageError, MissingPackageError, check_ours, needs

#: The entry-point group; each entry point names a `Command`, under the word that is typed.
GROUP = "model_quirks.commands"
#: The package whose commands need an engine.
_ENGINES = "worker"


def print_json(values: object) -> None:
    """Prints what a command has for programs."""
    print(canonical(values, indent=2))


def print_document(values: Mapping[str, Any]) -> None:
    """Prints the JSON of a command that has a schema in `quirks_core.schemas`, with its version."""
    print_json({"schema": SCHEMA, **values})


def _no_arguments(_: argparse.ArgumentParser) -> None:
    """Adds nothing."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the command line.

    Attributes:
        help: What it does, in one line.
        run: Carries it out and returns the exit code: 0 fine, 1 findings, 2 usage, 3 broken plugin.
        add_arguments: Adds its arguments.
        describes_run: It takes the options that describe a run.
        streams: Its standard output is another program's, also with ``--json``; otherwise it is what `run` prints.
        error_codes: Its own exit codes for errors, by the usual ones.
    """

    help: str
    run: Callable[[argparse.Namespace], int]
    add_arguments: Callable[[argparse.ArgumentParser], None] = _no_arguments
    describes_run: bool = False
    streams: bool = False
    error_codes: Mapping[int, int] = field(default_factory=dict)


#: The commands that need no engine, in the order of the help, each with where it is; a module is imported when it is used.
BUILT_IN: Mapping[str, str] = {
    "list": "listing:COMMAND",
    "plan": "planning:PLAN",
    "explain": "showing:COMMAND",
    "show": "showing:SHOW",
    "run": "run:COMMAND",
    "upgrade": "upgrade:COMMAND",
    "lock": "lock:COMMAND",
    "bisect": "bisect:COMMAND",
    "doctor": "doctor:COMMAND",
    "new": "new:COMMAND",
    "validate": "validate:COMMAND",
    "fingerprint": "fingerprint:COMMAND",
}


def find_commands(only: str | None = None) -> dict[str, EntryPoint]:
    """Finds the commands by name; imports none. A built-in name is not another distribution's to take.

    If only a built-in one is wanted, the installed distributions are not searched.
    """
    found = {name: EntryPoint(name, f"quirks_core.cli.{where}", GROUP) for name, where in BUILT_IN.items()}
    if only in found:
        return found
    others: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        others.setdefault(point.name, point)  # the first on sys.path, as imports have it
    return found | {name: point for name, point in sorted(others.items()) if name not in found}


def load_command(point: EntryPoint) -> Command:
    """Imports a command; for one that cannot be imported, its use and its help report why."""
    state, what = "broken: ", f"cannot be loaded from {point.value}"
    try:
        check_ours(point.value)
        with redirect_stdout(sys.stderr):
            command = point.load()
        if isinstance(command, Command):
            return command
        problem = f"{point.value} is no Command"
    except MissingPackageError as error:
        state, what, problem = "", "cannot run here", str(error)
    except HiddenPackageError as error:
        problem = str(error)
    except ModuleNotFoundError as error:
        problem = what_is_missing(error, point.value) or words(error)
    except Exception as error:
        problem = words(error)

    def broken(_: argparse.Namespace) -> int:
        raise UsageError(f"'quirks {point.name}' {what}: {problem}")

    def any_arguments(parser: argparse.ArgumentParser) -> None:
        parser.prefix_chars = "\0"  # whatever is typed, options too, is an argument: the reason counts, and not the usage
        parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)

    return Command(f"{state}{problem}", broken, any_arguments)


def what_is_missing(error: ModuleNotFoundError, place: str) -> str | None:
    """Returns what a command needs and what brings it; None if nothing is missing, so that the error is another one."""
    return needs(error, engine=place.partition(".")[0] == _ENGINES)
