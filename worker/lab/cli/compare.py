"""``quirks parity compare``: two dumps, without an engine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quirks_core.base.errors import UsageError
from quirks_core.cli.screen import Screen

if TYPE_CHECKING:
    from worker.lab.compare.compare import Comparison
    from worker.lab.compare.dump import Dump


def run_compare(options: argparse.Namespace, files: Sequence[str]) -> int:
    """Compares two dumps by ``options.profile`` and ``options.threshold``; 1 if a threshold is crossed."""
    if len(files) != 2:
        raise UsageError("quirks parity compare takes two dumps: A.json B.json")
    from worker.lab.compare.dump import Dump

    found = compared(options, *(Dump.read(Path(file)) for file in files))
    show(options, Screen(), found)
    return 0 if found.passed else 1


def compared(options: argparse.Namespace, a: Dump, b: Dump) -> Comparison:
    """Compares two dumps, with the installed quirks that set what differs."""
    from quirks_core.plugins.registry import Registry
    from worker.lab.attribution.coverage import quirks_that_set
    from worker.lab.compare.compare import compare
    from worker.lab.parity.thresholds import DEFAULT_PROFILE

    registry = Registry.load()
    return compare(
        a,
        b,
        profile=options.profile or DEFAULT_PROFILE,
        thresholds=options.threshold,
        cover=lambda slot: quirks_that_set(slot, registry, a.quirks, b.quirks),
    )


def show(options: argparse.Namespace, console: Screen, found: Comparison) -> None:
    """Prints a comparison, as JSON with ``--json``."""
    from worker.lab.compare.table import show_comparison

    if options.json:
        print(found.model_dump_json(indent=2))
    else:
        show_comparison(console, found)
