"""``quirks plan``: what applies to a run."""

from __future__ import annotations

import argparse
import sys

from quirks_core.base.errors import UsageError
from quirks_core.base.text import one_line
from quirks_core.cli.by_version import add_versions, read_versions, run_matrix
from quirks_core.cli.command import Command, print_document
from quirks_core.cli.options import add_run, load_run, program, run_options
from quirks_core.facts.trainers import TRAINERS
from quirks_core.facts.unknown import UNKNOWN
from quirks_core.plan.formats import vllm_args
from quirks_core.plan.records import Plan
from quirks_core.plan.summary import Summary
from quirks_core.plugins.planning import make_plan
from quirks_core.reporting.plan import ALL_HEADINGS, HEADINGS, findings, refused, rest, run, verdict
from quirks_core.reporting.terminal import Screen, line

#: What tells a run with adapters from others, beside the engine's own argument.
_TRAINED = "train.trainable_dtype"
_WITH_LORA = (
    "with LoRA add --set engine.enable_lora=true where the engine gets the adapter; where it is merged, "
    "train.trainable_dtype=float32 and the base's train.dtype"
)


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the form of the output, and the command line of a server."""
    parser.add_argument(
        "--format", choices=("vllm-args",),
        help="print only what quirks change, as options to append to 'vllm serve'; what they cannot express goes to standard "
        "error",
    )  # fmt: skip
    add_versions(parser, ",…", "; several make a table of quirks by version (repeatable)")
    parser.add_argument(
        "--verbose", action="store_true",
        help="list all that becomes of quirks, what they cost, and all that cannot be decided, with the reason; by version: "
        "list quirks that concern none, too",
    )  # fmt: skip
    add_run(parser)


def run_plan(options: argparse.Namespace) -> int:
    """Shows what applies to a run and why, or to a run on several versions of vLLM; 1 if the run is refused."""
    if options.json and options.format:
        raise UsageError("--json prints the whole plan, and --format a part of it; choose one of them")
    versions = read_versions(options)
    if len(versions) > 1 and options.format:
        raise UsageError(f"--format prints one plan, and --vllm asks for {len(versions)}; give one version")
    config = load_run(options)
    if len(versions) > 1:
        return run_matrix(options, config, versions)
    plan = make_plan(config, run_options(options, config))
    if options.json:
        print_document({**plan.model_dump(mode="json"), **Summary.of(plan).model_dump(mode="json")})
    elif options.format:
        _print_options(plan)
    else:
        show_plan(Screen(), plan, whole=options.verbose, whom=program(options))
        if options.trainer in TRAINERS and plan.context.fact(_TRAINED) is UNKNOWN and not plan.value("engine.enable_lora"):
            Screen().say(f"[dim]{_WITH_LORA}[/]")
    return 1 if plan.refusals else 0


def show_plan(screen: Screen, plan: Plan, *, whole: bool = False, whom: str = "") -> None:
    """Prints a plan; a plain run's fits a screen.

    Args:
        screen: Where.
        plan: The plan.
        whole: Every row with its reason and cost, everything that cannot be decided, and every warning.
        whom: The program that starts the engine; our worker, or the trainer, if empty.
    """
    screen.findings([verdict(plan)])
    screen.say(line(run(plan, whom)))
    screen.findings(findings(plan, whole=whole), ALL_HEADINGS if whole else HEADINGS)
    screen.say(f"[dim]{line(rest(plan, whole=whole))}[/]")


def _print_options(plan: Plan) -> None:
    """Prints what can be pasted on standard output, the rest as comments on standard error; for a refused run, the refusals."""
    if plan.refusals:
        Screen(stderr=True).findings(map(refused, plan.refusals))
        return
    words, notes = vllm_args(plan)
    if words:
        print(words)
    for text in notes:
        print(f"# {one_line(text)}", file=sys.stderr)


PLAN = Command("show what applies to a run and why", run_plan, add_plan_arguments, describes_run=True)
