"""``quirks explain``: what a quirk does to a run and why; without a run, its declaration."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from quirks_core.base.errors import UsageError
from quirks_core.cli.command import Command, print_json
from quirks_core.cli.options import add_run, add_versions, describes_run, load_run, program, read_versions, run_options
from quirks_core.declaration.adjustments import Adjustment, Advise, Default, Patch, Refuse, Require
from quirks_core.declaration.data_file import since
from quirks_core.declaration.flags import Kind
from quirks_core.declaration.quirk import Quirk
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.records import Plan, State, Status
from quirks_core.plan.summary import call, is_done
from quirks_core.plan.switches import DISABLE_VARIABLE
from quirks_core.plugins.finder import discover
from quirks_core.plugins.planning import make_plan
from quirks_core.plugins.registry import Registry
from quirks_core.plugins.validate import documentation
from quirks_core.reporting.plan import refused, run
from quirks_core.reporting.terminal import Screen, line, lines

#: What a state means for a run.
_STATES = {
    State.ACTIVE: "applies",
    State.DORMANT: "is dormant: the installed version is not affected",
    State.NOT_MATCHED: "does not concern this run",
    State.NOT_EXAMINED: "is off: nobody examined it on that version",
    State.UNKNOWN: "cannot be decided",
    State.DISABLED: "is switched off",
    State.SUPERSEDED: "is replaced",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what to explain, and the command line of a server."""
    parser.add_argument("id", metavar="ID", help="a quirk's id")
    add_versions(parser)
    add_run(parser)


def run_explain(options: argparse.Namespace) -> int:
    """Explains a quirk for a run; shows its declaration where no run is described."""
    if len(read_versions(options)) > 1:
        raise UsageError("--vllm: one version is explained at a time; quirks plan --vllm shows several")
    return _explain(options) if describes_run(options) or options.disable or options.force else _show_quirk(options)


def _explain(options: argparse.Namespace) -> int:
    config = load_run(options)
    making = run_options(options, config)
    registry = making.registry()
    if registry.skipped and options.id not in {item.quirk.id for item in registry.loaded}:
        registry = Registry.load(strict=making.strict)  # the user named it, so it may be imported
    item = registry.find(options.id)
    plan = make_plan(config, making, registry=registry)
    verdict = next(verdict for verdict in plan.verdicts if verdict.id == options.id)
    if options.json:
        (found,) = (one for one in plan.model_dump(mode="json")["verdicts"] if one["id"] == options.id)
        print_json(found)
        return 0
    screen = Screen()
    screen.say(f"[bold]{line(verdict.id)}[/] ({verdict.kind}) {_STATES[verdict.state]}", hang=4)
    screen.say(lines(verdict.because), indent=2)
    if verdict.state is State.ACTIVE:
        _show_answers(screen, item.quirk, _effects(plan, verdict.id))
    else:
        _show_answers(screen, item.quirk, ["nothing in this run"], "nothing in this run; where it applies: ")
    screen.say(f"[dim]{line(run(plan, program(options)))}[/]", indent=2)
    mine = [refusal for refusal in plan.refusals if any(quirk.id == verdict.id for quirk in refusal.quirks)]
    screen.findings(map(refused, mine), indent=2)
    return 0


def _show_answers(screen: Screen, quirk: Quirk, changes: Iterable[str], here: str = "") -> None:
    """Prints what goes wrong, what is changed, for whom, and what it costs."""
    what, *more = list(changes) or ["nothing"]
    rows = [
        ("about" if quirk.kind is Kind.FEATURE else "what goes wrong", quirk.title),
        ("what is changed", what),
        *(("", text) for text in more),
        ("for whom", str(quirk.match) + (f"; {quirk.versions}" if quirk.affected else "")),
        ("what it costs", f"{here}{quirk.cost or 'none is known'}"),
        ("to switch it off", f"--disable {quirk.id}, or {DISABLE_VARIABLE}={quirk.id}"),
    ]
    screen.entries([(name, lines(text, 0)) for name, text in rows])


def _effects(plan: Plan, quirk_id: str) -> Iterator[str]:
    """Everything that a quirk does to a run, in words; refusals are shown in full."""
    for item in plan.adjustments:
        if any(quirk.id == quirk_id for quirk in item.quirks):
            if item.status is Status.APPLIED and not is_done(plan, item.slot):
                how = call(item.slot, plan.changes.get(item.slot, item.value))
                yield f"{item.wanted} (advised, and not put into force here: {how})"
            else:
                yield f"{item.wanted} ({item.status.replace('_', ' ')}: {item.reason})"
    yield from (f"patch {patch.target}: {patch.quirk.reason}" for patch in plan.patches if patch.quirk.id == quirk_id)
    yield from (note.text.removeprefix(f"{quirk_id}: ") for note in plan.warnings if note.quirk == quirk_id)


def _show_quirk(options: argparse.Namespace) -> int:
    # Only what bears the name is loaded; a plugin that declares several is loaded if none does.
    everything = discover()
    item = Registry.load([one for one in everything if one.name == options.id] or everything).find(options.id)
    record = describe(item)
    if options.json:
        print_json(record)
        return 0
    screen = Screen()
    name = line(record["id"])
    screen.say(f"[bold]{name}[/] ({record['kind']}); for one run: quirks explain {name} --model FOLDER|ID", hang=4)
    _show_answers(screen, item.quirk, record["adjustments"])
    keys = ("flag", "severity", "supersedes", "since", "distribution", "location")
    single = [(key, ", ".join(record[key]) if key == "supersedes" else str(record[key])) for key in keys if record[key]]
    listed = [(key.removesuffix("s"), text) for key in ("references", "evidence") for text in record[key]]
    screen.entries([(key, lines(text, 0)) for key, text in (*single, *listed)])
    screen.print()
    for paragraph in re.split(r"\n\s*\n", record["documentation"].strip()):
        screen.say(lines(_reflowed(paragraph), 0), indent=2, hang=0)
        screen.print()
    return 0


def _reflowed(paragraph: str) -> str:
    """Joins the lines of prose, for terminals of any width; lists, tables and code keep theirs."""
    parts = paragraph.splitlines()
    return paragraph if any(re.match(r"\s|[-*] |[|#>$]|```", part) for part in parts) else " ".join(parts)


def notation(adjustment: Adjustment) -> str:
    """Returns what an adjustment does, and when, in the notation of declarations."""
    when = "" if adjustment.when is None else f", if {adjustment.when}"
    match adjustment:
        case Default() | Require():
            contrary = adjustment.instead_of if isinstance(adjustment, Require) else ()
            against = f" instead of {' or '.join(map(str, contrary))}" if contrary else ""
            wanted = f"{adjustment.slot} {adjustment.relation} {_operand(adjustment.operand)}"
            return f"{type(adjustment).__name__.lower()}: {wanted}{against}{when}"
        case Refuse():
            return f"refuse: {adjustment.reason}{when}; remedy: {adjustment.remedy}"
        case Advise():
            return f"advise: {_operand(adjustment.message)}{when}"
        case Patch():
            return f"patch: {adjustment.target}{when}{f': {adjustment.reason}' if adjustment.reason else ''}"
    raise TypeError(adjustment)


def _operand(operand: Any) -> str:
    if callable(operand):
        return f"what follows from the run ({(inspect.getdoc(operand) or operand.__name__).partition(chr(10))[0].rstrip('.')})"
    return str(operand).lower() if isinstance(operand, bool) else str(operand)


def describe(item: Loaded) -> dict[str, Any]:
    """Puts a quirk's declaration into JSON values."""
    quirk = item.quirk
    return {
        "id": quirk.id,
        "title": quirk.title,
        "flag": str(quirk.flag),
        "kind": quirk.kind.value,
        "severity": quirk.severity.value,
        "match": str(quirk.match),
        "affected": quirk.versions,
        "adjustments": [notation(adjustment) for adjustment in quirk.adjustments],
        "references": [f"{reference.type}: {reference.url}" for reference in quirk.references],
        "supersedes": list(quirk.supersedes),
        "evidence": [
            *(f"static probe: {probe}" for probe in quirk.probes),
            *(f"paired run {run.scenario}" for run in quirk.paired_runs),
        ],
        "cost": quirk.cost,
        "since": since(quirk, item.version),
        "distribution": f"{item.distribution} {item.version}",
        "location": str(quirk.location),
        "documentation": documentation(quirk),
    }


COMMAND = Command(
    "say what a quirk does to a run and why; without a run, what it declares",
    run_explain,
    add_arguments,
    describes_run=True,
)
SHOW = replace(COMMAND, help="the same as explain")
