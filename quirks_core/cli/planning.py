"""``quirks plan`` and ``quirks explain``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

from quirks_core.base.errors import UsageError
from quirks_core.base.json_values import canonical
from quirks_core.base.text import one_line
from quirks_core.cli.by_version import ENGINE, parse_versions, run_matrix
from quirks_core.cli.command import Command
from quirks_core.cli.options import add_server_command, load_config, load_server_command, plan_options
from quirks_core.cli.render import show_plan, show_refusal
from quirks_core.cli.screen import Screen, line, lines
from quirks_core.plan.formats import FORMATS
from quirks_core.plan.records import Plan, State, Status
from quirks_core.plan.summary import Summary, call, is_done
from quirks_core.plugins.planning import make_plan
from quirks_core.plugins.registry import Registry


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the form of the output, and the command line of a server."""
    parser.add_argument(
        "--format", choices=tuple(FORMATS),
        help="print only what quirks change: vllm-args (options to append to 'vllm serve'), env (exports), python (arguments "
        "of LLM or EngineArgs); what does not fit into it goes to standard error",
    )  # fmt: skip
    parser.add_argument(
        "--vllm", metavar="VERSION,…", action="append", default=[],
        help="resolve as if that version of vLLM were installed; several make a table of quirks by version (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--verbose", action="store_true",
        help="list what quirks in force cost, and everything that cannot be decided, with the reason; by version: list quirks "
        "that concern none, too",
    )  # fmt: skip
    add_server_command(parser)


def run_plan(options: argparse.Namespace) -> int:
    """Shows what applies to a run and why, or to a run on several versions of vLLM; 1 if the run is refused."""
    if options.json and options.format:
        raise UsageError("--json prints the whole plan, and --format a part of it; choose one of them")
    versions, again = _read_versions(options)
    config = load_server_command(options)[1] if options.cmd else load_config(options)
    if len(versions) > 1:
        return run_matrix(options, config, versions, again)
    plan = make_plan(config, plan_options(options, config))
    if options.json:
        print(canonical({**plan.model_dump(mode="json"), **Summary.of(plan).model_dump(mode="json")}, indent=2))
    elif options.format:
        _print_format(options.format, plan)
    else:
        show_plan(Screen(), plan, verbose=options.verbose)
    return 1 if plan.refusals else 0


def _read_versions(options: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the versions of ``--vllm``, and those left out because an equal one came before; assumes the first.

    Raises:
        UsageError: One is not a version, or another option contradicts them.
    """
    versions, again = parse_versions(options.vllm)
    if versions and any(text.partition("=")[0].strip() == ENGINE for text in options.assume):
        raise UsageError("--assume vllm==… and --vllm contradict each other: give the versions with --vllm")
    if len(versions) > 1 and options.format:
        raise UsageError(f"--format prints one plan, and --vllm asks for {len(versions)}; give one version")
    options.assume = [*(f"{ENGINE}=={version}" for version in versions[:1]), *options.assume]
    return versions, again


def _print_format(name: str, plan: Plan) -> None:
    """Prints what can be pasted on standard output, the rest as comments on standard error; for a refused run, the refusals."""
    if plan.refusals:
        screen = Screen(stderr=True)
        for refusal in plan.refusals:
            show_refusal(screen, refusal)
        return
    found = FORMATS[name](plan)
    for text in found.lines:
        print(text)
    for text in found.notes:
        print(f"# {one_line(text)}", file=sys.stderr)


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the quirk's id."""
    parser.add_argument("id", metavar="ID", help="the quirk's id")


def run_explain(options: argparse.Namespace) -> int:
    """Prints whether one quirk concerns a run, with the one comparison that decided."""
    config = load_config(options)
    making = plan_options(options, config)
    registry = making.registry()
    if registry.skipped and options.id not in {item.quirk.id for item in registry.loaded}:
        registry = Registry.load(strict=making.strict)  # the user named it, so it may be imported
    registry.find(options.id)
    plan = make_plan(config, making, registry=registry)
    verdict = next(verdict for verdict in plan.verdicts if verdict.id == options.id)
    if options.json:
        print(json.dumps(verdict.model_dump(mode="json"), indent=2, sort_keys=True, default=str))
        return 0
    words = {
        State.ACTIVE: "applies",
        State.DORMANT: "is dormant: the installed version is not affected",
        State.NOT_MATCHED: "does not concern this run",
        State.NOT_EXAMINED: "is off: nobody examined it on that version",
        State.UNKNOWN: "cannot be decided",
        State.DISABLED: "is switched off",
        State.SUPERSEDED: "is replaced",
    }
    screen = Screen()
    screen.say(f"[bold]{line(verdict.id)}[/] ({verdict.kind}) {words[verdict.state]}", hang=4)
    for text in (verdict.because, *(_effects(plan, verdict.id) if verdict.state is State.ACTIVE else ())):
        screen.say(lines(text), indent=2)
    for refusal in plan.refusals:
        if any(quirk.id == verdict.id for quirk in refusal.quirks):
            show_refusal(screen, refusal, indent=2)
    return 0


def _effects(plan: Plan, quirk_id: str) -> Iterator[str]:
    """Everything that a quirk does to a run, in words; refusals are shown in full."""
    for item in plan.adjustments:
        if any(quirk.id == quirk_id for quirk in item.quirks):
            if item.status is Status.APPLIED and not is_done(plan, item.slot):
                value = plan.changes.get(item.slot, item.value)
                yield f"{item.wanted} (advised, and not put into force here: {call(item.slot, value)})"
            else:
                yield f"{item.wanted} ({item.status.replace('_', ' ')}: {item.reason})"
    yield from (f"patch {patch.target}: {patch.quirk.reason}" for patch in plan.patches if patch.quirk.id == quirk_id)
    yield from (note.text for note in plan.warnings if note.quirk == quirk_id)


PLAN = Command("show what applies to a run and why", run_plan, add_plan_arguments, describes_run=True)
EXPLAIN = Command("say why one quirk applies to a run or does not", run_explain, add_explain_arguments, describes_run=True)
