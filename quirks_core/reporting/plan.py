"""Shows a plan to a person: the verdict, what to do, what is in force, what is undecided; all of it with ``--verbose``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from quirks_core.base.text import listed
from quirks_core.declaration.flags import Kind
from quirks_core.declaration.trace import Answer
from quirks_core.plan.formats import option_for, supply
from quirks_core.plan.records import NoteKind, Plan, Refusal, State, Status, Verdict
from quirks_core.plan.summary import ADVISED, IN_FORCE, Entry, in_one_line, of_our_worker, rows
from quirks_core.reporting.terminal import Screen, line, lines

#: The groups of rows, each with its colour and what its heading adds to the word.
_GROUPS: dict[str, tuple[str, str]] = {
    IN_FORCE: ("green", ""),
    ADVISED: ("yellow", "what the trainer or the client does; nothing here puts it into force"),
    Status.ALREADY_SET: ("green", "the value is that without the quirk"),
    Status.KEPT_USER: ("yellow", "what the user typed wins"),
    Status.OUTRANKED: ("yellow", "another quirk asks for more"),
    State.DORMANT: ("cyan", "the installed version is not affected"),
    State.SUPERSEDED: ("cyan", "another quirk replaces it"),
    State.DISABLED: ("yellow", "switched off"),
}
#: Undecided quirks of this model that have a line of their own, and the options in it.
_MOST = 3


def show_plan(screen: Screen, plan: Plan, *, verbose: bool = False, whom: str = "") -> None:
    """Prints a plan; a plain run's fits a screen.

    Args:
        screen: Where.
        plan: The plan.
        verbose: Every row with its reason and cost, everything that cannot be decided, and every warning.
        whom: The program that starts the engine; our worker, or the trainer, if empty.
    """
    found = list(rows(plan))
    to_do = [row for row in found if row.group == ADVISED]
    screen.say(_verdict(plan, to_do))
    screen.say(_run(plan, whom))
    for refusal in plan.refusals:
        show_refusal(screen, refusal)
    if verbose:
        _show_groups(screen, plan, found)
    else:
        for row in to_do:
            screen.say(f"[yellow]{'do' if row.required else 'advised'}[/] {line(row)}", hang=4)
        _show_in_force(screen, plan, found)
    for text in _undecided(plan, verbose=verbose):
        screen.say(text)
    for note in _warnings(plan, verbose=verbose):
        screen.say(f"[yellow]warning:[/] {lines(note)}")
    screen.say(f"[dim]{_rest(plan, verbose=verbose)}[/]")


def _verdict(plan: Plan, to_do: list[Entry]) -> str:
    if plan.refusals:
        number = len(plan.refusals)
        return f"[bold red]refused[/] for {number} reason{'s' if number > 1 else ''}: the engine does not start"
    if to_do:
        return "[bold yellow]do this[/]: what only your program can do; the rest is in force by itself"
    return f"[bold green]fine[/]: there is nothing to do{', as far as is decided' if plan.undecided else ''}"


def _run(plan: Plan, whom: str) -> str:
    context = plan.context
    whom = whom or ("our worker" if of_our_worker(plan) else "an engine that another program starts")
    model = f"{context.model.name} ({context.model.model_type})"
    return line(f"{model}, purpose {context.purpose}, for {whom}, plan {plan.digest[:12]}; {versions(plan)}")


def versions(plan: Plan) -> str:
    """Returns the versions that a plan is for, the engine's first."""
    context = plan.context
    names = sorted((name for name in context.packages if name != "ray"), key=lambda name: (name != "vllm", name))
    shown = [f"{name} {context.packages[name]}{' (assumed)' if name in context.assumed else ''}" for name in names]
    facts = [f"{name} {context.fact(name)} (assumed)" for name in sorted(context.assumed - set(names))]
    return ", ".join([*shown, f"platform {context.platform}", *facts])


def show_refusal(screen: Screen, refusal: Refusal, *, indent: int = 0) -> None:
    """Prints why a run is refused, what to do, and which switch overrides it."""
    screen.say(f"[bold red]refused:[/] {line(' and '.join(map(str, refusal.quirks)))}", indent=indent, hang=4)
    for text in (refusal.in_full, f"remedy: {refusal.remedy}", f"override: {refusal.switch}"):
        screen.say(lines(text), indent=indent + 4)


def _show_groups(screen: Screen, plan: Plan, found: list[Entry]) -> None:
    costs = {verdict.id: verdict.cost for verdict in plan.active if verdict.cost}
    for group, (colour, meaning) in _GROUPS.items():
        mine = [(name, row) for row in found if row.group == group for name in row.quirks]
        if mine:
            screen.say(f"\n[{colour}]{group.replace('_', ' ')}[/]{f': {meaning}' if meaning else ''}")
        for name, row in sorted(mine, key=lambda pair: pair[0]):
            screen.say(f"[bold]{line(name)}[/]  {'required: ' if row.required else ''}{line(row.whole)}", indent=2)
            cost = costs.pop(name, "") if group == IN_FORCE else ""
            for text in filter(None, (row.why, f"cost: {cost}" if cost else "")):
                screen.say(f"[dim]{line(text)}[/]", indent=4, hang=0)


def _show_in_force(screen: Screen, plan: Plan, found: list[Entry]) -> None:
    """A line for each cure, with what goes wrong without it, those of this model first; one for all that is speed."""
    done: dict[str, list[str]] = {}
    for row in (row for row in found if row.group == IN_FORCE):
        for name in row.quirks:
            done.setdefault(name, []).extend([row.what] if row.slot else [])
    mine = [verdict for verdict in plan.verdicts if verdict.id in done]
    cures = sorted((one for one in mine if one.kind is not Kind.FEATURE), key=lambda one: not _is_of_model(one))
    if mine:
        screen.say(f"{'would be ' if plan.refusals else ''}[green]in force[/], and what goes wrong without it")
    settings = {name: f" [dim]({line(', '.join(texts))})[/]" if texts else "" for name, texts in done.items()}
    screen.entries([(f"[bold]{line(one.id)}[/]", f"{line(one.title)}{settings[one.id]}") for one in cures])
    if faster := [one.id for one in mine if one.kind is Kind.FEATURE]:
        screen.say(f"features: {line(', '.join(faster))}", indent=2)


def _is_of_model(verdict: Verdict) -> bool:
    """Returns whether a quirk's match asks for a kind of model, and this is one."""
    return any(leaf.fact.startswith("model.") and leaf.answer is Answer.YES for leaf in verdict.trace)


def _undecided(plan: Plan, *, verbose: bool) -> Iterator[str]:
    """Yields what is undecided, as markup: quirks of this model with the options that decide them, the others in one line."""
    if verbose:
        reasons = [line(note.text) for note in plan.warnings if note.kind is NoteKind.UNDECIDED]
        if reasons:
            yield "\n[yellow]undecided[/]: a fact is missing; what depends on it does nothing"
        for fact, names in plan.undecided.items():
            yield f"  [bold]{line(option_for(fact) or fact)}[/] decides {line(', '.join(names))}"
        yield from (f"  {text}" for text in reasons)
        return
    of_model = {verdict.id for verdict in plan.verdicts if _is_of_model(verdict)}
    own = sorted({name for names in plan.undecided.values() for name in names if name in of_model})[:_MOST]
    for name in own:
        options = [option_for(fact) for fact, names in plan.undecided.items() if name in names]
        yield f"[yellow]undecided[/]: [bold]{line(name)}[/], decided by {line(listed(filter(None, options), _MOST))}"
    left = {fact: others for fact, names in plan.undecided.items() if (others := set(names) - set(own))}
    yield from (f"[yellow]{line(text)}[/]" for text in [in_one_line(left, supply(left))] if text)
    # A fact that no run has cannot be supplied.
    yield from (line(note.text) for note in plan.notes if note.kind is NoteKind.UNDECIDED)


def _warnings(plan: Plan, *, verbose: bool) -> Iterator[str]:
    unchecked = 0
    for note in plan.warnings:
        if note.kind is NoteKind.UNCHECKED and not verbose:
            unchecked += 1
        elif note.kind not in (NoteKind.UNDECIDED, NoteKind.ADVICE):
            yield note.text
    if unchecked:
        number = "1 setting or patch is" if unchecked == 1 else f"{unchecked} settings and patches are"
        yield f"{number} not checked, because the engine is assumed or not installed (--verbose lists them)"


def _rest(plan: Plan, *, verbose: bool) -> str:
    count = Counter(verdict.state for verdict in plan.verdicts)
    others = f"{count[State.NOT_MATCHED]} other quirks do not concern this run"
    off = ", ".join(f"{count[state]} {state}" for state in (State.DORMANT, State.SUPERSEDED, State.DISABLED) if count[state])
    more = "" if verbose else f"--verbose has the rest{f' ({off})' if off else ''}; "
    return f"{more}{others} (quirks explain ID --model … says why)"
