"""``quirks run -- COMMAND``: starts a program with quirks in every vLLM engine that it starts."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from quirks_core.apply.handed_down import HOOK_VARIABLE, VLLM_PLUGINS
from quirks_core.base import private_folder
from quirks_core.base.errors import QuirksError, UsageError
from quirks_core.cli.command import Command
from quirks_core.hook import receipts
from quirks_core.hook.settings import RECEIPT_VARIABLE, REQUIRE_VARIABLE, SET_VARIABLE, HookSettings
from quirks_core.plan.switches import DISABLE_VARIABLE
from quirks_core.reporting.terminal import Screen, lines

_FOLDERS = "model-quirks-run-"
_FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
#: What the terminal sends to all of its foreground processes by itself.
_FROM_TERMINAL = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command, and the hook's options for it."""
    parser.usage = "quirks run [options] -- COMMAND…"
    parser.add_argument(
        "--purpose", choices=("rollout", "eval", "serve"), help="what engines are for; their arguments tell if left out"
    )
    parser.add_argument(
        "--set", metavar="SLOT=VALUE", action="append", default=[], help="a fact, or an engine argument (repeatable)"
    )
    parser.add_argument(
        "--disable", metavar="NAME", action="append", default=[], help="turn a quirk or a flag off (repeatable)"
    )
    parser.add_argument("--report", action="store_true", help="print what would be done, and change nothing")
    parser.add_argument("--receipt", metavar="FILE", help="write receipts to this file")
    parser.add_argument(
        "--require-receipt", action="store_true", help="fail if an engine cannot prove its plan, or none starts"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments, after --")


def run(options: argparse.Namespace) -> int:
    """Replaces this process by the command; with ``--require-receipt``, waits for it and checks its receipts.

    Raises:
        UsageError: There is no such command, or an option or a variable of ours has a value that it cannot have.
    """
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not words:
        raise UsageError("no command; write it after --, as in: quirks run -- vllm serve MODEL")
    environ = environment(options, dict(os.environ))
    settings = HookSettings.read(environ)
    if settings is None:
        raise UsageError(f"{HOOK_VARIABLE}=off turns off what 'quirks run' is for; unset it, or run the command alone")
    if settings.only_reports and settings.needs_receipt:
        raise UsageError("--report changes nothing, so there is no receipt to require; leave one of the two out")
    program = shutil.which(words[0], path=environ.get("PATH"))
    if program is None:
        raise UsageError(f"no command {words[0]!r} on PATH")
    if not settings.needs_receipt:
        sys.stdout.flush()
        os.execve(program, list(words), environ)  # noqa: S606 - the user's own command
    return _supervise(program, words, environ, settings.receipt)


def environment(options: argparse.Namespace, environ: dict[str, str]) -> dict[str, str]:
    """Returns the environment of the command."""
    mine = [*([f"purpose={options.purpose}"] if options.purpose else []), *options.set]
    overridden = [text.partition("=")[0].strip() for text in mine]
    given = environ.get(SET_VARIABLE, "").split(";")
    settings = [part for part in given if part.strip() and part.partition("=")[0].strip() not in overridden] + mine
    if settings:
        environ[SET_VARIABLE] = ";".join(settings)
    if options.disable:
        environ[DISABLE_VARIABLE] = ",".join([*filter(None, [environ.get(DISABLE_VARIABLE)]), *options.disable])
    environ[HOOK_VARIABLE] = "report" if options.report else environ.get(HOOK_VARIABLE) or "on"
    if options.receipt:
        environ[RECEIPT_VARIABLE] = str(Path(options.receipt).absolute())
    if options.require_receipt:
        environ[REQUIRE_VARIABLE] = "1"
    if (names := environ.get("VLLM_PLUGINS")) is not None:  # a list without us keeps us out without a word
        environ["VLLM_PLUGINS"] = ",".join(dict.fromkeys([*filter(None, names.split(",")), *VLLM_PLUGINS]))
    return environ


def _supervise(program: str, words: Sequence[str], environ: dict[str, str], file: Path | None) -> int:
    """Runs the command to its end; 1 in place of 0 if an engine came up without a receipt, or none came up."""
    with private_folder.temporary(_FOLDERS) as folder:
        if file is None:
            file = folder / "receipts.json"
            environ[RECEIPT_VARIABLE] = str(file)
        receipts.begin(file, only_new=True)
        code = _wait_for(program, words, environ)
        found = receipts.read(file)
    problems = [f"an engine could have no receipt: {text}" for text in found.problems]
    if not found.engines and not problems:
        why = "it started none, or one in a Python without model-quirks, or with a VLLM_PLUGINS that keeps it out"
        problems = [f"no engine of {words[0]!r} wrote a receipt: {why}"]
    screen = Screen(stderr=True)
    for text in problems:
        screen.say(f"[bold red]error:[/] {lines(text)}")
    return code or (1 if problems else 0)


def _wait_for(program: str, words: Sequence[str], environ: dict[str, str]) -> int:
    own_group = not sys.stdin.isatty()  # a terminal's Ctrl-C reaches the command by itself
    try:
        child = subprocess.Popen(words, executable=program, env=environ, process_group=0 if own_group else None)  # noqa: S603 - as above
    except OSError as error:
        raise QuirksError(f"{words[0]} cannot be started: {error.strerror}") from None

    def forward(number: int, _: FrameType | None) -> None:
        if own_group or number not in _FROM_TERMINAL:
            child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


COMMAND = Command("run a command with quirks in every vLLM engine that it starts", run, add_arguments, streams=True)
