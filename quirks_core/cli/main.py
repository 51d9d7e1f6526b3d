"""Reads the arguments, runs one command and turns its outcome into an exit code.

0 fine, 1 findings, 2 usage, 3 broken plugin.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from rich.console import Console
from rich.markup import escape

from quirks_core.cli import demo, doctor, generate, listing, planning
from quirks_core.errors import QuirksError
from quirks_core.plan import RefusedError

_STREAM_CLOSED = 141  # what a shell reports for a program that writes into a closed pipe


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: The arguments; those of the process if None.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(arguments)
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


def _report(error: QuirksError, *, as_json: bool) -> None:
    notes = getattr(error, "__notes__", [])
    if as_json:
        refusals = [item.model_dump(mode="json") for item in error.refusals] if isinstance(error, RefusedError) else []
        print(json.dumps({"error": str(error), "notes": notes, "refusals": refusals}, indent=2, sort_keys=True))
        return
    console = Console(stderr=True)
    console.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
    for note in notes:
        console.print(f"  {escape(note)}", highlight=False, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="quirks",
        description="Decides which model quirks apply to a vLLM run, why, and proves that they are in force.",
    )
    parser.add_argument("--version", action="version", version=f"model-quirks {version('model-quirks')}")
    verbs = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("--json", action="store_true", help="print JSON on standard output")
    run = _run_options()

    def verb(name: str, module_run: object, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        command = verbs.add_parser(name, help=text, description=text, parents=[output, *parents])
        command.set_defaults(run=module_run)
        return command

    verb("list", listing.run_list, "list the installed quirks; imports none of them")
    show = verb("show", listing.run_show, "show one quirk's declaration")
    show.add_argument("id", metavar="ID", help="the quirk's id")
    verb("plan", planning.run_plan, "show what applies to a run and why", run)
    explain = verb("explain", planning.run_explain, "say why one quirk applies to a run or does not", run)
    explain.add_argument("id", metavar="ID", help="the quirk's id")
    verb("doctor", doctor.run_doctor, "check plugins, versions and patches of this installation")
    generating = verb("generate", generate.run_generate, "start a real engine and generate from prompts", run)
    generating.add_argument("prompts", nargs="+", metavar="PROMPT", help="text to continue")
    generating.add_argument("--greedy", action="store_true", help="take the most probable tokens instead of sampling")
    generating.add_argument("--verbose", action="store_true", help="show the engine's log")
    demonstration = verb("demo", demo.run_demo, "make tiny models, show their plans, run one on a real engine")
    demonstration.add_argument("--verbose", action="store_true", help="show the engine's log")
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
    group.add_argument(
        "--disable", metavar="ID|FLAG", action="append", default=[], help="switch a quirk or a flag off (repeatable)"
    )
    return run
