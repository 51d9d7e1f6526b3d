"""``quirks migrate``: the same prompts and seeds through two versions of vLLM, and what differs."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from quirks_core.cli.command import Command
from quirks_core.cli.options import installed_only, load_config
from quirks_core.reporting.terminal import Screen, line
from worker.lab.cli.arguments import add_limits, add_prompts, add_verbose, output_folder
from worker.lab.cli.compare import show
from worker.lab.cli.display import quiet_engine, stages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the two environments, what to generate, and where to write."""
    parser.add_argument(
        "--from", dest="a", metavar="PYTHON", required=True,
        help="the reference: the interpreter of an environment with vLLM and model-quirks, or the environment's folder",
    )  # fmt: skip
    parser.add_argument("--to", dest="b", metavar="PYTHON", required=True, help="the candidate, likewise")
    add_prompts(parser.add_argument_group("what to generate"))
    add_limits(parser.add_argument_group("verdict"))
    parser.add_argument("--output", metavar="FOLDER", type=Path, help="keep A.json, B.json and comparison.json there")
    add_verbose(parser)


def run_migrate(options: argparse.Namespace) -> int:
    """Makes both dumps and compares them; 1 if a threshold is crossed."""
    installed_only(options, "name them with --from and --to")
    from worker.lab.compare.compare import compare
    from worker.lab.compare.migrate import Environment, dumps
    from worker.lab.parity.thresholds import chosen_thresholds

    chosen_thresholds(options.profile, options.threshold)  # fails here, not after half an hour
    quiet_engine(verbose=options.verbose)
    console = Screen(stderr=options.json)
    with tempfile.TemporaryDirectory(prefix="quirks-migrate-") as temporary:
        folder = output_folder(options.output) or Path(temporary)
        given = _given(options, Path(temporary))
        a, b = Environment.of(options.a), Environment.of(options.b)
        with stages(console) as notify:
            made = dumps(a, b, given, folder, notify=notify)
        found = compare(*made, profile=options.profile, thresholds=options.threshold)
        (folder / "comparison.json").write_text(found.model_dump_json(indent=2) + "\n", encoding="utf-8")
    show(options, console, found)
    if options.output and not options.json:
        console.say(f"written: A.json, B.json and comparison.json in {line(options.output)}")
    return 0 if found.passed else 1


def _given(options: argparse.Namespace, folder: Path) -> list[str]:
    """Returns the options of both dumps: the run, and the prompts as token ids, so that one tokenizer makes them."""
    from worker.lab.parity.prompts import load_prompts

    config = load_config(options)
    prompts = load_prompts(config.model, file=options.prompts)
    run, rows = folder / "run.yaml", folder / "prompts.jsonl"
    run.write_text(config.model_dump_json(exclude_unset=True), encoding="utf-8")
    rows.write_text("".join(json.dumps({"prompt_token_ids": row}) + "\n" for row in prompts.rows), encoding="utf-8")
    names = {"--disable": options.disable, "--force": options.force, "--locked": [options.locked] if options.locked else []}
    switches = [word for option, values in names.items() for value in values for word in (option, str(value))]
    what = ["--config", str(run), "--prompts", str(rows), "--tokens", str(options.tokens), "--seed", str(options.seed)]
    return [*what, *switches, *(["--strict"] if options.strict else []), *(["--verbose"] if options.verbose else [])]


COMMAND = Command(
    "run two versions of vLLM on the same prompts and compare them", run_migrate, add_arguments, describes_run=True
)
