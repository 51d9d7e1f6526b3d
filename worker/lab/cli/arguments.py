"""Arguments that commands with engines share."""

from __future__ import annotations

import argparse
from pathlib import Path

from quirks_core.base.errors import UsageError
from quirks_core.cli.numbers import positive


def add_verbose(parser: argparse._ActionsContainer) -> None:
    """Adds whether the engine's log is shown."""
    parser.add_argument("--verbose", action="store_true", help="show the engine's log")


def add_prompts(parser: argparse._ActionsContainer) -> None:
    """Adds the prompts and the number of tokens."""
    parser.add_argument(
        "--prompts", metavar="FILE", type=Path, help="texts, one per line, or .jsonl with prompt or prompt_token_ids"
    )
    parser.add_argument("--tokens", metavar="N", type=positive, default=64, help="tokens generated from each (%(default)s)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the samples (%(default)s)")


def add_limits(parser: argparse._ActionsContainer) -> None:
    """Adds the thresholds."""
    parser.add_argument(
        "--profile", metavar="NAME", default="peers", help="set of thresholds: %(default)s, bfloat16 or float32 (%(default)s)"
    )
    parser.add_argument(
        "--threshold", metavar="METRIC=LIMIT", action="append", default=[], help="instead of the profile's (repeatable)"
    )


def output_folder(folder: Path | None) -> Path | None:
    """Creates the folder of ``--output`` before the work starts; None if the option is not given.

    Raises:
        UsageError: It cannot be made.
    """
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {folder} cannot be made: {error.strerror}") from None
    return folder
