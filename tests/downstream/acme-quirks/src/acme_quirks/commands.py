"""A command of Acme's own: ``quirks acme-racks``."""

import argparse
import os
import sys

from quirks_core.cli.command import Command


def _run(options: argparse.Namespace) -> int:
    sys.stdout.write(f"{os.environ.get('ACME_RACKS', '1')} {options.unit}\n")
    return 0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--unit", default="racks")


RACKS = Command("say how many racks this run spans", _run, _add_arguments)
