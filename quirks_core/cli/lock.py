"""``quirks lock``: writes down which quirks are installed."""

from __future__ import annotations

import argparse

from quirks_core.cli.command import Command
from quirks_core.plan.switches import Switches
from quirks_core.plugins.lock import Lock
from quirks_core.plugins.registry import Registry
from quirks_core.reporting.terminal import Screen, line

_FILE = "quirks.lock"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where the file goes."""
    parser.add_argument("--output", metavar="FILE", default=_FILE, help=f"where to write it (default: {_FILE})")


def run_lock(options: argparse.Namespace) -> int:
    """Writes the lock file. A broken plugin cannot be locked.

    Raises:
        BrokenPluginsError: There are broken plugins.
        UsageError: The file cannot be written.
    """
    lock = Lock.of(Registry.load(strict=True, switches=Switches.gather()))
    lock.write(options.output)
    if options.json:
        print(lock.model_dump_json(indent=2))
    else:
        Screen().say(f"{line(options.output)}: {len(lock.quirks)} quirks; hold a run against it with --locked")
    return 0


COMMAND = Command("write down which quirks are installed, for --locked", run_lock, add_arguments)
