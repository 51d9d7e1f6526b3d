"""Reads the arguments, runs one command and turns its outcome into an exit code.

0 fine, 1 findings, 2 usage, 3 broken plugin.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from typing import Any, NoReturn

from quirks_core.base.errors import QuirksError, UsageError, nearest, shown
from quirks_core.base.text import one_line
from quirks_core.cli.command import Command, find_commands, load_command, print_json, what_is_missing
from quirks_core.declaration.flags import BUILT_IN
from quirks_core.reporting.terminal import Screen, lines

_STREAM_CLOSED = 141  # what a shell reports for a program that writes into a closed pipe
#: Our commands, by what a user wants; most of those that start engines are in model-quirks-lab.
_GROUPS: Mapping[str, Sequence[str]] = {
    "look at quirks and plans": ("list", "plan", "explain", "show", "upgrade"),
    "run, prove and compare on engines": ("run", "prove", "audit", "parity", "weights", "migrate", "bisect"),
    "maintain an installation or a package": ("doctor", "lock", "new", "validate", "fingerprint"),
}
_OTHERS = "commands of other packages"
#: What ``quirks`` alone prints.
_FIRST_STEPS = """\
quirks plan --model FOLDER|ID           what applies to a run and why; or: quirks plan -- vllm serve MODEL …
quirks explain QUIRK                    what goes wrong without a quirk, and what it changes
quirks run -- COMMAND …                 a program with quirks in every vLLM engine that it starts (or MODEL_QUIRKS=on)
quirks doctor                           whether this installation is sound
quirks --help                           all commands"""


class _WrongArgumentsError(UsageError):
    """The arguments are none of a command's."""

    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        self.parser = parser
        super().__init__(message)


class _Parser(argparse.ArgumentParser):
    """Leaves what is wrong with the arguments to `main`, which may have to print it as JSON."""

    def error(self, message: str) -> NoReturn:
        """Raises what argparse would print."""
        raise _WrongArgumentsError(self, message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Adds the nearest choice to the error for a value that is none."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += nearest(str(value), action.choices or ())
            raise

    def _print_message(self, message: str, file: Any = None) -> None:
        """Writes the help; argparse would pass over an output that takes nothing more."""
        (file or sys.stderr).write(message)


class _Program(_Parser):
    """The parser of the command line as a whole; its help lists the commands in groups."""

    #: By the title of a group, name and help of each command.
    commands: Mapping[str, Sequence[tuple[str, str]]] = {}

    def format_help(self) -> str:
        """Formats the help: usage, description, the groups of commands, options."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        groups = {title: [argparse.Action([], name, help=text) for name, text in rows] for title, rows in self.commands.items()}
        groups["options"] = [action for action in self._actions if action.option_strings]
        for title, actions in groups.items():
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        return formatter.format_help()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the terminal may know no more than ASCII
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at exit
        return _STREAM_CLOSED
    except KeyboardInterrupt:
        return 130


def _run(words: list[str]) -> int:
    own = words[: words.index("--")] if "--" in words else words  # what follows is another program's
    as_json = "--json" in own  # known also where the arguments cannot be read
    if not words:
        print(_FIRST_STEPS)
        return 0
    place = ""
    codes: Mapping[int, int] = {}
    try:
        options = _parsed(words)
        codes = options.error_codes
        as_json, place = as_json or options.json, options.run.__module__
        if options.json and not options.streams:
            with _only_prints() as text:
                code: int = options.run(options)
            sys.stdout.write(text.getvalue())
        else:
            code = options.run(options)
    except SystemExit:  # of --help and --version
        sys.stdout.flush()
        raise
    except Exception as error:
        if (problem := _problem(error, place)) is None:
            raise
        if isinstance(problem, _WrongArgumentsError):
            codes = problem.parser.get_default("error_codes") or {}
        _show_problem(problem, as_json=as_json)
        code = codes.get(problem.exit_code, problem.exit_code)
    sys.stdout.flush()
    return code


def _problem(error: Exception, place: str) -> QuirksError | None:
    """Returns an error as one that a person can act on; None if it is a defect."""
    match error:
        case QuirksError():
            return error
        case OSError() if error.filename is not None:
            return UsageError(f"{shown(str(error.filename), 100)}: {error.strerror}")
        case RecursionError():
            return UsageError("something in the configuration or the model is nested too deep")
        case ModuleNotFoundError() if (missing := what_is_missing(error, place)) is not None:
            return UsageError(f"this command cannot run here: {missing}")
    return None


def _parsed(words: list[str]) -> argparse.Namespace:
    options, unknown = make_parser(next((word for word in words if not word.startswith("-")), "")).parse_known_args(words)
    if unknown:
        known = options.parser._option_string_actions
        names = [word.partition("=")[0] for word in unknown if word.startswith("-")]  # what follows may be a key
        name = unknown[0].partition("=")[0]
        hint = "; write options after the command" if name in known else nearest(name, known)
        options.parser.error(f"unrecognized arguments: {' '.join(names) or unknown[0]}{hint}")
    return options


@contextmanager
def _only_prints() -> Iterator[io.StringIO]:
    """Yields what a command prints; what child processes and libraries write to standard output goes to standard error."""
    ours = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(io.StringIO()) as text:
            yield text
    finally:
        os.dup2(ours, 1)
        os.close(ours)


def _show_problem(error: QuirksError, *, as_json: bool) -> None:
    notes = getattr(error, "__notes__", [])
    if as_json:
        refusals = [item.model_dump(mode="json") for item in getattr(error, "refusals", ())]
        # What `str` makes of it is for terminals.
        print_json({"error": Exception.__str__(error), "notes": notes, "refusals": refusals})
        return
    screen = Screen(stderr=True)
    if isinstance(error, _WrongArgumentsError):
        error.parser.print_usage(sys.stderr)
    screen.say(f"[bold red]error:[/] {lines(error)}")
    for note in notes:
        screen.say(lines(note), indent=2)


def make_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Makes the parser of the command line, or of only one command, so that the modules of the others are not imported."""
    parser = _Program(
        prog="quirks",
        description="Decides which model quirks apply to a vLLM run, why, and proves that they are in force.",
    )
    parser.add_argument("--version", action="version", version=f"model-quirks {version('model-quirks')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    found = find_commands(only)
    loaded = {name: load_command(found[name]) for name in ([only] if only in found else found) if name}
    for name, command in loaded.items():
        _add(commands, name, command)
    ours = {name for name, point in found.items() if point.dist is None or point.dist.name == BUILT_IN}
    groups = {title: [name for name in names if name in ours] for title, names in _GROUPS.items()}
    groups[_OTHERS] = [name for name in found if not any(name in names for names in groups.values())]
    parser.commands = {
        title: [(one_line(name), _help(loaded[name])) for name in names if name in loaded]
        for title, names in groups.items()
        if names
    }
    return parser


def _help(command: Command) -> str:
    return one_line(command.help).replace("%", "%%")  # it may be of another package; argparse fills in what a % begins


def _add(commands: argparse._SubParsersAction[_Parser], name: str, command: Command) -> None:
    output = _Parser(add_help=False)
    output.add_argument("--json", action="store_true", help="print JSON on standard output")
    parents = [output, _run_options()] if command.describes_run else [output]
    parser = commands.add_parser(name, description=one_line(command.help), parents=parents)
    command.add_arguments(parser)
    parser.set_defaults(run=command.run, streams=command.streams, parser=parser, error_codes=command.error_codes)


def _run_options() -> _Parser:
    run = _Parser(add_help=False)
    group = run.add_argument_group("the run")
    group.add_argument("--model", metavar="FOLDER|ID", help="model folder or hub id; overrides the configuration's")
    group.add_argument("--config", metavar="FILE", help="configuration in YAML")
    group.add_argument("--purpose", choices=("rollout", "eval", "serve"), help="same as --set purpose=…")
    group.add_argument(
        "--set", metavar="SLOT=VALUE", action="append", default=[], help="set one key of the configuration (repeatable)"
    )
    group.add_argument(
        "--assume", metavar="NAME==VALUE", action="append", default=[],
        help="resolve as if it were so: a version (vllm==0.9.1), platform==cuda, cpu==avx2, gpu==8.0, or another fact of this "
        "machine or of the model (repeatable)",
    )  # fmt: skip
    switches = run.add_argument_group("switches", "NAME: a quirk, a flag, distribution:NAME, third-party, all")
    switches.add_argument("--disable", metavar="NAME", action="append", default=[], help="turn quirks off (repeatable)")
    switches.add_argument(
        "--force", metavar="NAME", action="append", default=[], help="turn quirks on whatever their match says (repeatable)"
    )
    switches.add_argument("--strict", action="store_true", help="a broken plugin is an error (exit code 3)")
    switches.add_argument("--locked", metavar="FILE", help="refuse quirks other than those of a lock file ('quirks lock')")
    return run
