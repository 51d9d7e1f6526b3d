"""``quirks migrate``: the same prompts and seeds through two versions of vLLM, and what differs."""

from __future__ import annotations

import argparse
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quirks_core.cli.command import Command
from quirks_core.cli.numbers import seconds
from quirks_core.cli.options import installed_only
from quirks_core.cli.screen import Screen, line
from worker.lab.cli.arguments import add_limits, add_prompts, add_samples, add_verbose, output_folder
from worker.lab.cli.compare import compared, show
from worker.lab.cli.display import quiet_engine, stages
from worker.lab.cli.dump import make_order

_TIMEOUT_S = 1800.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the two environments, what to generate, and where to write."""
    engine = "PYTHON|VERSION"
    parser.add_argument(
        "--from", dest="a", metavar=engine, required=True,
        help="the reference: an environment's interpreter or folder, or a version of vLLM (0.30), created once",
    )  # fmt: skip
    parser.add_argument("--to", dest="b", metavar=engine, required=True, help="the candidate, likewise")
    what = parser.add_argument_group("what to generate")
    add_prompts(what)
    add_samples(what)
    add_limits(parser.add_argument_group("verdict"))
    parser.add_argument(
        "--timeout", metavar="S", type=seconds, default=_TIMEOUT_S, help="time limit of each side (%(default)g s)"
    )
    parser.add_argument("--output", metavar="FOLDER", type=Path, help="keep A.json, B.json and comparison.json there")
    add_verbose(parser)


def run_migrate(options: argparse.Namespace) -> int:
    """Makes both dumps and compares them; 1 if a threshold is crossed."""
    installed_only(options, "name them with --from and --to")
    from worker.lab.compare.environments import environments
    from worker.lab.compare.migrate import dumps
    from worker.lab.parity.store import write_text
    from worker.lab.parity.thresholds import chosen_thresholds

    chosen_thresholds(options.profile, options.threshold)  # fails here, not after half an hour
    quiet_engine(verbose=options.verbose)
    console = Screen(stderr=options.json)
    with tempfile.TemporaryDirectory(prefix="quirks-migrate-") as temporary, _ended_by_termination():
        folder = output_folder(options.output) or Path(temporary)
        order = make_order(options, console)
        with stages(console) as notify:
            a, b = environments((options.a, options.b), notify=notify)
            found = compared(options, *dumps(a, b, order, folder, timeout_s=options.timeout, notify=notify))
        write_text(folder / "comparison.json", found.model_dump_json(indent=2) + "\n")
    show(options, console, found)
    if options.output and not options.json:
        console.say(f"written: A.json, B.json and comparison.json in {line(options.output)}")
    return 0 if found.passed else 1


@contextmanager
def _ended_by_termination() -> Iterator[None]:
    """Handles SIGTERM like Ctrl-C, so that no process and no incomplete environment is left behind."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


COMMAND = Command(
    "run two versions of vLLM on the same prompts and compare them", run_migrate, add_arguments, describes_run=True
)
