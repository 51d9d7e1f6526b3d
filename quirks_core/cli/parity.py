"""``quirks parity``: do the rollout engine and the trainer give the same tokens the same logprobs, and if not, why not?"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from quirks_core.cli.dumping import output_folder, run_compare, run_dump, stages
from quirks_core.cli.generate import quiet_engine
from quirks_core.cli.numbers import positive, share
from quirks_core.cli.run import load_config
from quirks_core.cli.screen import Screen
from quirks_core.errors import UsageError
from quirks_core.lock import LOCKED_VARIABLE
from quirks_core.registry import STRICT_VARIABLE

if TYPE_CHECKING:
    from worker.parity.run import Options

_DUMP, _COMPARE = "dump", "compare"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what to measure and where to write it."""
    parser.add_argument(
        "action", nargs="*", metavar="ACTION",
        help="'dump': write what this engine generates to --output; 'compare A B': compare two such files, without an engine; "
        "neither: measure",
    )  # fmt: skip
    what = parser.add_argument_group("what to measure")
    what.add_argument("--scenario", metavar="NAME", action="append", default=[], help="only this scenario (repeatable)")
    what.add_argument(
        "--prompts", metavar="FILE", type=Path, help="texts, one a line, or .jsonl with prompt or prompt_token_ids"
    )
    what.add_argument("--num-prompts", metavar="N", type=positive, help="take the first N prompts only")
    what.add_argument("--tokens", metavar="N", type=positive, default=64, help="tokens generated from each (%(default)s)")
    what.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the samples (%(default)s)")
    what.add_argument("--trainer-device", metavar="DEVICE", help="where the trainer computes; a GPU if there is one")
    limits = parser.add_argument_group("verdict")
    limits.add_argument(
        "--profile", metavar="NAME", default="peers", help="set of thresholds: peers, bfloat16, float32 (%(default)s)"
    )
    limits.add_argument(
        "--threshold", metavar="METRIC=LIMIT", action="append", default=[], help="instead of the profile's (repeatable)"
    )
    limits.add_argument(
        "--epsilon", metavar="E", type=share, default=0.2, help="ratios outside of 1 ± E are clipped (%(default)s)"
    )
    ladder = parser.add_argument_group("attribution")
    ladder.add_argument("--attribute", action="store_true", help="change one setting at a time; say which moves parity")
    ladder.add_argument(
        "--setting", metavar="NAME", action="append", default=[], help="with --attribute: only this setting (repeatable)"
    )
    dump = parser.add_argument_group("dump")
    dump.add_argument("--samples", metavar="N", type=positive, default=2, help="sampled rows from each prompt (%(default)s)")
    dump.add_argument("--tokens-of", metavar="FILE", type=Path, help="score the tokens of that dump, too")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output", metavar="FOLDER", type=Path,
        help="write report.json, report.html and report.png; the same call again goes on where one was broken off",
    )  # fmt: skip
    output.add_argument("--verbose", action="store_true", help="show the engine's log")


def run_parity(options: argparse.Namespace) -> int:
    """Measures parity, or makes or compares dumps; 1 if a threshold is crossed."""
    action, *files = options.action or [""]
    if action == _COMPARE:
        return run_compare(options, files)
    if files or action not in ("", _DUMP):
        raise UsageError(f"quirks parity takes nothing, 'dump' or 'compare A B', not {' '.join(options.action)!r}")
    if options.assume:
        raise UsageError("--assume makes plans for versions that are not installed; parity runs the installed one")
    quiet_engine(verbose=options.verbose)
    if options.strict:
        os.environ[STRICT_VARIABLE] = "1"
    if options.locked:
        os.environ[LOCKED_VARIABLE] = options.locked
    if action == _DUMP:
        return run_dump(options)
    return _measure(options)


def _measure(options: argparse.Namespace) -> int:
    if options.setting and not options.attribute:
        raise UsageError("--setting says which settings --attribute changes; give --attribute as well")
    config = load_config(options)
    folder = output_folder(options.output)
    from worker.parity.html import write_html
    from worker.parity.plots import write_png
    from worker.parity.run import run
    from worker.parity.table import show_report

    console = Screen(stderr=options.json)
    state = folder / "state.jsonl" if folder else None
    with stages(console) as tell:
        report = asyncio.run(run(config, _options(options), state=state, tell=tell))
    slim = report.without_samples()
    if folder:
        (folder / "report.json").write_text(slim.model_dump_json(indent=2) + "\n", encoding="utf-8")
        write_html(slim, folder / "report.html")
        write_png(slim, folder / "report.png")
    if options.json:
        print(slim.model_dump_json(indent=2))
    else:
        show_report(console, slim)
        if folder:
            console.print(f"written: report.html, report.png and report.json in {folder}", soft_wrap=True, highlight=False)
    return 0 if report.passed else 1


def _options(options: argparse.Namespace) -> Options:
    from worker.parity.run import Options

    return Options(
        scenarios=tuple(options.scenario),
        prompts=options.prompts,
        num_prompts=options.num_prompts,
        new_tokens=options.tokens,
        seed=options.seed,
        profile=options.profile,
        thresholds=tuple(options.threshold),
        epsilon=options.epsilon,
        attribute=options.attribute,
        settings=tuple(options.setting),
        trainer_device=options.trainer_device,
        disable=tuple(options.disable),
        force=tuple(options.force),
    )
