"""Reads the arguments, runs one command and turns its outcome into an exit code.

0 fine, 1 findings, 2 usage, 3 broken plugin.
"""

from __future__ import annotations

import argparse
import codecs
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version

from rich.console import Console
from rich.markup import escape

from quirks_core.cli.command import Command, find_commands, load_command
from quirks_core.errors import QuirksError

_PYDANTIC = "PYDANTIC_DISABLE_PLUGINS"
_STREAM_CLOSED = 141  # what a shell reports for a program that writes into a closed pipe


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: The arguments; those of the process if None.

    Returns:
        The exit code.
    """
    codecs.register_error("quirks", _as_in_json)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="quirks")  # the terminal may know no more than ASCII
    words = list(sys.argv[1:] if arguments is None else arguments)
    with _without_pydantic_plugins():
        return _run(words)


def _run(words: list[str]) -> int:
    options = make_parser(next((word for word in words if not word.startswith("-")), "")).parse_args(words)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except QuirksError as error:
        _report(error, as_json=options.json)
        return error.exit_code
    except BrokenPipeError:
        # The reader has seen enough; without this, Python complains again while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _STREAM_CLOSED
    except KeyboardInterrupt:
        return 130
    return code


def _as_in_json(error: UnicodeError) -> tuple[str, int]:
    """Writes what a stream cannot take as JSON would escape it, so that JSON stays JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


@contextmanager
def _without_pydantic_plugins() -> Iterator[None]:
    """Keeps pydantic from reading every distribution's metadata while it is imported: one that is broken would end us."""
    before = os.environ.get(_PYDANTIC)
    os.environ[_PYDANTIC] = "__all__"
    try:
        yield
    finally:
        os.environ.pop(_PYDANTIC)
        if before is not None:
            os.environ[_PYDANTIC] = before


def _report(error: QuirksError, *, as_json: bool) -> None:
    from quirks_core.plan import RefusedError

    notes = getattr(error, "__notes__", [])
    if as_json:
        refusals = [item.model_dump(mode="json") for item in error.refusals] if isinstance(error, RefusedError) else []
        print(json.dumps({"error": str(error), "notes": notes, "refusals": refusals}, indent=2, sort_keys=True))
        return
    console = Console(stderr=True)
    console.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
    for note in notes:
        console.print(f"  {escape(note)}", highlight=False, soft_wrap=True)


def make_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Makes the parser of the command line.

    Args:
        only: The one command whose arguments are needed, so that the modules of the others are not imported; all if None.
    """
    parser = argparse.ArgumentParser(
        prog="quirks",
        description="Decides which model quirks apply to a vLLM run, why, and proves that they are in force.",
    )
    parser.add_argument("--version", action="version", version=f"model-quirks {version('model-quirks')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    found = find_commands(only)
    for name, point in {only: found[only]}.items() if only in found else found.items():
        _add(commands, str(name), load_command(point))
    return parser


def _add(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: Command) -> None:
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("--json", action="store_true", help="print JSON on standard output")
    parents = [output, _run_options()] if command.describes_run else [output]
    parser = commands.add_parser(name, help=command.help, description=command.help, parents=parents)
    command.add_arguments(parser)
    parser.set_defaults(run=command.run)


def _run_options() -> argparse.ArgumentParser:
    """The options that describe a run."""
    run = argparse.ArgumentParser(add_help=False)
    group = run.add_argument_group("the run")
    group.add_argument("--model", metavar="FOLDER|ID", help="model folder or hub id; overrides the configuration's")
    group.add_argument("--config", metavar="FILE", help="configuration in YAML")
    group.add_argument("--purpose", choices=("rollout", "eval", "serve"), help="same as --set purpose=…")
    group.add_argument(
        "--set", metavar="SLOT=VALUE", action="append", default=[], help="set one key of the configuration (repeatable)"
    )
    group.add_argument(
        "--assume", metavar="NAME==VERSION", action="append", default=[],
        help="resolve as if that version were installed: vllm, torch, transformers, ray, or platform==cpu (repeatable)",
    )  # fmt: skip
    switches = run.add_argument_group("switches", "NAME: a quirk, a flag, distribution:NAME, third-party, all")
    switches.add_argument("--disable", metavar="NAME", action="append", default=[], help="turn quirks off (repeatable)")
    switches.add_argument(
        "--force", metavar="NAME", action="append", default=[], help="turn quirks on whatever their match says (repeatable)"
    )
    switches.add_argument("--strict", action="store_true", help="a broken plugin is an error (exit code 3)")
    switches.add_argument("--locked", metavar="FILE", help="refuse quirks other than those of a lock file ('quirks lock')")
    return run
