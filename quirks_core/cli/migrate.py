"""``quirks migrate``: the same prompts and seeds through two versions of vLLM, and what differs."""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from quirks_core.cli.dumping import covering, make_order, output_folder, show_comparison, stages
from quirks_core.cli.generate import quiet_engine
from quirks_core.cli.numbers import positive, seconds
from quirks_core.cli.screen import Screen
from quirks_core.errors import UsageError
from quirks_core.lock import LOCKED_VARIABLE
from quirks_core.registry import STRICT_VARIABLE

_TIMEOUT_S = 1800.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the two environments, what to generate, and where to write."""
    engine = "PYTHON|VERSION"
    parser.add_argument(
        "--from", dest="a", metavar=engine, required=True,
        help="the reference: an environment's interpreter or folder, or a version of vLLM (0.30), for which one is made once",
    )  # fmt: skip
    parser.add_argument("--to", dest="b", metavar=engine, required=True, help="the candidate, likewise")
    what = parser.add_argument_group("what to generate")
    what.add_argument(
        "--prompts", metavar="FILE", type=Path, help="texts, one a line, or .jsonl with prompt or prompt_token_ids"
    )
    what.add_argument("--num-prompts", metavar="N", type=positive, help="take the first N prompts only")
    what.add_argument("--tokens", metavar="N", type=positive, default=64, help="most tokens from each prompt (%(default)s)")
    what.add_argument("--samples", metavar="N", type=positive, default=2, help="sampled rows from each prompt (%(default)s)")
    what.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the first sample (%(default)s)")
    limits = parser.add_argument_group("verdict")
    limits.add_argument("--profile", metavar="NAME", default="peers", help="set of thresholds (%(default)s)")
    limits.add_argument(
        "--threshold", metavar="METRIC=LIMIT", action="append", default=[], help="instead of the profile's (repeatable)"
    )
    parser.add_argument("--timeout", metavar="S", type=seconds, default=_TIMEOUT_S, help="limit of each side (%(default)g s)")
    parser.add_argument("--output", metavar="FOLDER", type=Path, help="keep A.json, B.json and comparison.json there")
    parser.add_argument("--verbose", action="store_true", help="let the engines log")


def run_migrate(options: argparse.Namespace) -> int:
    """Makes both dumps and compares them; 1 if a threshold is crossed."""
    if options.assume:
        raise UsageError("--assume makes plans for versions that are not installed; name them with --from and --to")
    from worker.parity.compare import compare
    from worker.parity.dump import write_text
    from worker.parity.environments import environment
    from worker.parity.migrate import dumps
    from worker.parity.thresholds import chosen_thresholds

    chosen_thresholds(options.profile, options.threshold)  # now, not after half an hour
    quiet_engine(verbose=options.verbose)
    if options.strict:
        os.environ[STRICT_VARIABLE] = "1"
    if options.locked:
        os.environ[LOCKED_VARIABLE] = str(Path(options.locked).absolute())
    console = Screen(stderr=options.json)
    with ExitStack() as stack:
        folder = output_folder(options.output) or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="quirks-migrate-"))
        )
        order = make_order(options, console)
        with stages(console) as tell:
            a, b = (
                environment(spec, tell=lambda text, name=f"{side}, vLLM {spec}": tell(f"{name}: {text}"))  # type: ignore[misc]
                for side, spec in (("A", options.a), ("B", options.b))
            )
            both = dumps(a, b, order, folder, timeout_s=options.timeout, tell=tell)
            found = compare(*both, profile=options.profile, thresholds=options.threshold, cover=covering(*both))
        write_text(folder / "comparison.json", found.model_dump_json(indent=2) + "\n")
    if options.json:
        print(found.model_dump_json(indent=2))
    else:
        show_comparison(console, found)
        if options.output:
            console.print(f"written: A.json, B.json and comparison.json in {options.output}", soft_wrap=True, highlight=False)
    return 0 if found.passed else 1
