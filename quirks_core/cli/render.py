"""Shows plans to a person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from quirks_core.cli.screen import Screen, line, lines
from quirks_core.plan.formats import option_for, supply
from quirks_core.plan.records import NoteKind, Plan, Refusal, State, Status, Verdict
from quirks_core.plan.summary import Entry, Summary, in_one_line

_IN_FORCE, _ADVISED = "in force", "advised"
#: The groups of a plan in their order, each with its colour and what its heading adds to the word. Refusals come last, in full.
_GROUPS: dict[str, tuple[str, str]] = {
    _IN_FORCE: ("green", ""),
    _ADVISED: ("yellow", "what the trainer or the client does; nothing here puts it into force"),
    Status.ALREADY_SET: ("green", "the value is that without the quirk"),
    Status.KEPT_USER: ("yellow", "what the user typed wins"),
    Status.OUTRANKED: ("yellow", "another quirk asks for more"),
    State.DORMANT: ("cyan", "the installed version is not affected"),
    State.SUPERSEDED: ("cyan", "another quirk replaces it"),
    State.DISABLED: ("yellow", "switched off"),
}


class _Entry(NamedTuple):
    """One thing that a quirk does to a run, or why it does nothing."""

    group: str
    quirk: str
    what: str
    why: str = ""


def show_plan(screen: Screen, plan: Plan, *, verbose: bool = False) -> None:
    """Prints a plan: versions and run, what quirks do by what became of it, then warnings and refusals.

    Args:
        screen: Where.
        plan: The plan.
        verbose: Whatever cannot be decided has a line of its own, instead of one for all; what is in force has its cost.
    """
    screen.say(versions(plan))
    model = plan.context.model
    screen.say(f"{line(model.name)} ({line(model.model_type)}), purpose {line(plan.context.purpose)}, plan {plan.digest[:12]}")
    summary = Summary.of(plan)
    entries = [*_listed(_IN_FORCE, summary.in_force), *_listed(_ADVISED, summary.advised)]
    entries += [entry for verdict in plan.verdicts for entry in _entries(plan, verdict)]
    costs = {verdict.id: verdict.cost for verdict in plan.active if verdict.cost and verbose}
    for group, (colour, meaning) in _GROUPS.items():
        mine = [entry for entry in entries if entry.group == group]
        if not mine:
            continue
        screen.say(f"\n[{colour}]{group.replace('_', ' ')}[/]{f': {meaning}' if meaning else ''}")
        for entry in mine:
            screen.say(f"[bold]{line(entry.quirk)}[/]  {line(entry.what)}", indent=2)
            texts = [entry.why, f"cost: {cost}" if group == _IN_FORCE and (cost := costs.pop(entry.quirk, "")) else ""]
            for text in filter(None, texts):
                screen.say(f"[dim]{line(text)}[/]", indent=4, hang=0)
    for text in _undecided(plan, verbose=verbose):
        screen.say(text)
    quiet = sum(verdict.state is State.NOT_MATCHED for verdict in plan.verdicts)
    screen.say(f"\n[dim]{quiet} other quirks do not concern this run (quirks explain ID says why)[/]")
    for note in plan.warnings:
        if note.kind not in (NoteKind.UNDECIDED, NoteKind.ADVICE):
            screen.say(f"[yellow]warning:[/] {lines(note.text)}")
    for refusal in plan.refusals:
        show_refusal(screen, refusal)


def _undecided(plan: Plan, *, verbose: bool) -> Iterator[str]:
    """Yields, as markup, one line for all that is undecided; or a line for each missing fact, then each reason."""
    notes = plan.warnings if verbose else plan.notes  # a fact that no run has cannot be supplied
    reasons = [line(note.text) for note in notes if note.kind is NoteKind.UNDECIDED]
    if not verbose:
        yield from (f"\n[yellow]{line(text)}[/]" for text in [in_one_line(plan.undecided, supply(plan.undecided))] if text)
        yield from reasons
    elif reasons:
        yield "\n[yellow]undecided[/]: a fact is missing; what depends on it does nothing"
        for fact, quirks in plan.undecided.items():
            yield f"  [bold]{line(option_for(fact) or fact)}[/] decides {line(', '.join(quirks))}"
        yield from (f"  {text}" for text in reasons)


def versions(plan: Plan) -> str:
    """Returns, as markup, the versions that a plan is for, the engine's first."""
    context = plan.context
    names = sorted((name for name in context.packages if name != "ray"), key=lambda name: (name != "vllm", name))
    shown = [f"{name} {context.packages[name]}{' (assumed)' if name in context.assumed else ''}" for name in names]
    facts = [f"{name} {context.fact(name)} (assumed)" for name in sorted(context.assumed - set(names))]
    return line(", ".join([*shown, f"platform {context.platform}", *facts]))


def show_refusal(screen: Screen, refusal: Refusal, *, indent: int = 0) -> None:
    """Prints why a run is refused, what to do, and which switch overrides it."""
    screen.say(f"[bold red]refused:[/] {line(' and '.join(map(str, refusal.quirks)))}", indent=indent, hang=4)
    for text in (refusal.in_full, f"remedy: {refusal.remedy}", f"override: {refusal.switch}"):
        screen.say(lines(text), indent=indent + 4)


def _listed(group: str, entries: Iterable[Entry]) -> list[_Entry]:
    """The entries of one of a plan's lists, by quirk."""
    found = []
    for entry in entries:
        what = f"{entry.what}: {entry.how}" if entry.how else entry.what
        found += [_Entry(group, quirk, f"required: {what}" if entry.required else what, entry.why) for quirk in entry.quirks]
    return sorted(found, key=lambda one: one.quirk)


def _entries(plan: Plan, verdict: Verdict) -> Iterator[_Entry]:
    """What else becomes of a quirk and of its requests; what is undecided or refused is shown apart."""
    if verdict.state in (State.DORMANT, State.SUPERSEDED, State.DISABLED):
        yield _Entry(verdict.state, verdict.id, verdict.because)
    for item in plan.adjustments:
        if item.status is not Status.APPLIED and any(quirk.id == verdict.id for quirk in item.quirks):
            yield _Entry(item.status, verdict.id, item.wanted, item.reason)
