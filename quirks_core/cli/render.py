"""Shows plans and receipts to a person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from quirks_core.apply.receipt import Receipt
from quirks_core.cli.screen import Screen, line, lines
from quirks_core.plan.formats import option_for
from quirks_core.plan.records import NoteKind, Plan, Refusal, State, Status, Verdict

#: The groups of a plan in their order, each with its colour and what its heading adds to the word. Refusals come last, in full.
_GROUPS: dict[str, tuple[str, str]] = {
    Status.APPLIED: ("green", ""),
    Status.ALREADY_SET: ("green", "the value is that without the quirk"),
    Status.KEPT_USER: ("yellow", "what the user typed wins"),
    Status.OUTRANKED: ("yellow", "another quirk asks for more"),
    State.UNKNOWN: ("yellow", "a fact is missing; what depends on it does nothing"),
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


def show_plan(screen: Screen, plan: Plan, *, title: str | None = None, verbose: bool = False) -> None:
    """Prints a plan: versions and run, what quirks do by what became of it, then warnings and refusals.

    Args:
        screen: Where.
        plan: The plan.
        title: A line above it.
        verbose: Whatever cannot be decided has a line of its own, instead of one for each fact that is missing.
    """
    if title:
        screen.say(f"[bold]{line(title)}[/]")
    screen.say(versions(plan))
    model = plan.context.model
    screen.say(f"{line(model.name)} ({line(model.model_type)}), purpose {line(plan.context.purpose)}, plan {plan.digest[:12]}")
    entries = [entry for verdict in plan.verdicts for entry in _entries(plan, verdict)]
    for group, (colour, meaning) in _GROUPS.items():
        mine = [entry for entry in entries if entry.group == group]
        undecided = list(_undecided(plan, verbose=verbose)) if group == State.UNKNOWN else []
        if not mine and not undecided:
            continue
        screen.say(f"\n[{colour}]{group.replace('_', ' ')}[/]{f': {meaning}' if meaning else ''}")
        for text in undecided:
            screen.say(text, indent=2)
        for entry in mine:
            screen.say(f"[bold]{line(entry.quirk)}[/]  {line(entry.what)}", indent=2)
            if entry.why:
                screen.say(f"[dim]{line(entry.why)}[/]", indent=4, hang=0)
    quiet = sum(verdict.state is State.NOT_MATCHED for verdict in plan.verdicts)
    screen.say(f"\n[dim]{quiet} other quirks do not concern this run (quirks explain ID says why)[/]")
    for note in plan.warnings:
        if note.kind is not NoteKind.UNDECIDED:
            screen.say(f"[yellow]warning:[/] {lines(note.text)}")
    for refusal in plan.refusals:
        show_refusal(screen, refusal)


def _undecided(plan: Plan, *, verbose: bool) -> Iterator[str]:
    """Yields, as markup, each missing fact with the option that supplies it and the quirks that depend on it."""
    for fact, quirks in plan.undecided.items() if not verbose else ():
        yield f"[bold]{line(option_for(fact) or fact)}[/] decides {line(', '.join(quirks))}"
    for note in plan.warnings if verbose else plan.notes:  # a fact that no run has cannot be supplied
        if note.kind is NoteKind.UNDECIDED:
            yield line(note.text)


def versions(plan: Plan) -> str:
    """Says, as markup, which versions a plan is for, the engine's first."""
    context = plan.context
    names = sorted((name for name in context.packages if name != "ray"), key=lambda name: (name != "vllm", name))
    shown = [f"{name} {context.packages[name]}{' (assumed)' if name in context.assumed else ''}" for name in names]
    return line(", ".join([*shown, f"platform {context.platform}"]))


def show_refusal(screen: Screen, refusal: Refusal, *, indent: int = 0) -> None:
    """Prints why a run is refused, what to do, and which switch overrides it."""
    screen.say(f"[bold red]refused:[/] {line(' and '.join(map(str, refusal.quirks)))}", indent=indent, hang=4)
    for text in (refusal.in_full, f"remedy: {refusal.remedy}", f"override: {refusal.switch}"):
        screen.say(lines(text), indent=indent + 4)


def _entries(plan: Plan, verdict: Verdict) -> Iterator[_Entry]:
    """Everything that a quirk does to a run; what is refused is shown as a refusal."""
    if verdict.state is State.UNKNOWN:  # among what is undecided
        return
    if verdict.state is not State.ACTIVE:
        yield _Entry(verdict.state, verdict.id, verdict.because)
        return
    seen = False
    for item in plan.adjustments:
        for quirk in item.quirks:
            if quirk.id == verdict.id:
                seen = True
                yield _Entry(
                    item.status, verdict.id, item.wanted, quirk.reason if item.status is Status.APPLIED else item.reason
                )
    for patch in plan.patches:
        if patch.quirk.id == verdict.id:
            seen = True
            yield _Entry(Status.APPLIED, verdict.id, f"patch {patch.target.rpartition('.')[2]}", patch.quirk.reason)
    refused = any(quirk.id == verdict.id for refusal in plan.refusals for quirk in refusal.quirks)
    if not seen and not refused:
        yield _Entry(Status.APPLIED, verdict.id, "a warning", verdict.title)


def show_receipt(screen: Screen, receipt: Receipt) -> None:
    """Prints what every process acknowledged and what the engine runs with."""
    screen.say("[bold]receipt[/]: what every process has")
    for ack in receipt.processes:
        screen.say(
            f"{line(ack.process)} (pid {ack.pid}), plan {ack.digest[:12]}{'' if ack.effects else ': no effects'}", indent=2
        )
        for item in ack.effects:
            pending = " (at import)" if item.pending else ""
            screen.say(f"{line(item.slot)}: {line(_short(item.before))} → {line(_short(item.after))}{pending}", indent=4)
    screen.say("[bold]read back from the engine[/]")
    rows = []
    for read in receipt.engine:
        before = "left open" if read.before is None else str(read.before)
        by = " by a quirk" if read.binding else ""
        rows.append((line(read.slot), f"{line(read.engine)}{by} [dim](before quirks: {line(before)})[/]"))
    screen.entries(rows)


def _short(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 24 or ":" in text else f"{text[:12]}…"
