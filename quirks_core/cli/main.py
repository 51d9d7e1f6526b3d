"""Reads the arguments, runs one command and turns its outcome into an exit code.

0 fine, 1 findings, 2 usage, 3 broken plugin.
"""

from __future__ import annotations

import argparse
import codecs
import importlib
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

from quirks_core.errors import QuirksError

_PYDANTIC = "PYDANTIC_DISABLE_PLUGINS"
_STREAM_CLOSED = 141  # what a shell reports for a program that writes into a closed pipe


class Verb(NamedTuple):
    """One command of the command line.

    Attributes:
        name: What is typed.
        module: Module under `quirks_core.cli` with ``run_NAME`` and, if the command has arguments, ``add_NAME_arguments`` or
            ``add_arguments``; a dash is an underscore there. It is imported only when the command is used.
        help: What it does, in one line.
        describes_run: It takes the options that describe a run.
    """

    name: str
    module: str
    help: str
    describes_run: bool = False


#: Every command, in the order of the help.
VERBS = (
    Verb("list", "listing", "list the installed quirks; imports none of them"),
    Verb("show", "showing", "show one quirk's declaration"),
    Verb("plan", "planning", "show what applies to a run and why", describes_run=True),
    Verb("explain", "planning", "say why one quirk applies to a run or does not", describes_run=True),
    Verb("matrix", "matrix", "show which quirks apply to a run on which versions of vLLM", describes_run=True),
    Verb("diff", "diff", "show what differs between two plans"),
    Verb("lock", "lock", "write down which quirks are installed, for --locked"),
    Verb("generate", "generate", "start a real engine and generate from prompts", describes_run=True),
    Verb("bisect", "bisect", "find the quirks that change how a command ends", describes_run=True),
    Verb("prove", "prove", "run the evidence of quirks on the installed engine: are they needed?"),
    Verb("parity", "parity", "compare the logprobs of rollout and trainer; say what moves them apart", describes_run=True),
    Verb("audit", "audit", "find what a refit leaves wrong in a model, and which quirk covers it", describes_run=True),
    Verb("audit-lifecycle", "audit_lifecycle", "list which quirks are active, dormant or expired, with the evidence"),
    Verb("migrate", "migrate", "run two versions of vLLM on the same prompts and compare them", describes_run=True),
    Verb("doctor", "doctor", "check plugins, versions and patches of this installation"),
    Verb("new", "new", "make a package with a quirk and its tests"),
    Verb("validate", "validate", "check the quirks of a distribution without an engine"),
    Verb("fingerprint", "fingerprint", "print the fingerprint of a patch's target"),
    Verb("docs", "docs", "write the documentation's pages that come from the code"),
    Verb("demo", "demo", "make tiny models, show their plans, run one on a real engine"),
)


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
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("--json", action="store_true", help="print JSON on standard output")
    run = _run_options()
    for verb in VERBS:
        parents = [output, run] if verb.describes_run else [output]
        command = commands.add_parser(verb.name, help=verb.help, description=verb.help, parents=parents)
        if only is None or verb.name == only:
            module = importlib.import_module(f"quirks_core.cli.{verb.module}")
            name = verb.name.replace("-", "_")
            add = getattr(module, f"add_{name}_arguments", None) or getattr(module, "add_arguments", None)
            if add is not None:
                add(command)
            command.set_defaults(run=getattr(module, f"run_{name}"))
    return parser


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
