"""What a plan means to a person, as findings that a terminal and a log show alike: to do, in force, undecided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from quirks_core.base.text import listed
from quirks_core.configuration.slots import slot_around, slot_named
from quirks_core.declaration.flags import Kind, ModelFlag
from quirks_core.declaration.trace import Answer
from quirks_core.facts.context import RunContext
from quirks_core.facts.packages import installed_platform, installed_version
from quirks_core.plan.formats import option_for
from quirks_core.plan.records import NoteKind, Plan, Refusal, State, Status, Verdict
from quirks_core.plan.summary import ADVISED, IN_FORCE, SEE_ALL, Entry, of_our_worker, rows
from quirks_core.reporting.finding import Finding

#: What the levels of a short list are headed by, and those of a whole one, whose order is that of the rows.
HEADINGS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys((IN_FORCE, f"would be {IN_FORCE}"), ", and what goes wrong without it")
)
ALL_HEADINGS: Mapping[str, str] = MappingProxyType(
    {
        IN_FORCE: "",
        ADVISED: ": what the trainer or the client does; nothing here puts it into force",
        Status.ALREADY_SET: ": the value is that without the quirk",
        Status.KEPT_USER: ": what the user typed wins",
        Status.OUTRANKED: ": another quirk asks for more",
        State.DORMANT: ": the installed version is not affected",
        State.SUPERSEDED: ": another quirk replaces it",
        State.DISABLED: ": switched off",
    }
)
#: Cures that have a line of their own, beside advice and without; undecided quirks that do, and the options in it.
_MOST_BESIDE_ADVICE, _MOST_CURES, MOST = 3, 5, 3
#: Facts of a trainer that its user may have to supply, because its presets leave them open; of others he can set none.
NUMERICS = ("train.dtype", "train.trainable_dtype", "train.autocast", "train.head_dtype")


@dataclass(frozen=True, slots=True)
class Ways:
    """What the user of a program does.

    Attributes:
        supply: Returns how he supplies missing facts; empty if he can supply none of them.
        see_all: How he sees everything.
    """

    supply: Callable[[Iterable[str]], str]
    see_all: str


COMMAND_LINE = Ways(lambda facts: listed(dict.fromkeys(filter(None, map(option_for, facts))), MOST), "--verbose lists them")
#: For programs that start engines in a block of ours.
LIBRARY = Ways(", ".join, SEE_ALL)


def verdict(plan: Plan) -> Finding:
    """Returns whether a run is fine as it is."""
    if number := len(plan.refusals):
        return Finding("refused", "", f"{number} reason{'s' if number > 1 else ''}, so the engine does not start")
    if number := sum(row.group == ADVISED for row in rows(plan)):
        what = "1 thing that only your program" if number == 1 else f"{number} things that only your program"
        rest = "our worker" if of_our_worker(plan) else "MODEL_QUIRKS=on"
        return Finding("do this", "", f"{what} can do, below; {rest} does the rest")
    return Finding("fine", "", f"there is nothing to do{', as far as is decided' if plan.undecided else ''}")


def run(plan: Plan, whom: str = "", why: str = "") -> str:
    """Returns in one line what a plan is for: for whom, where the facts do not name a program, and why it has its purpose."""
    context = plan.context
    trainer = context.settings.get("train.framework")
    whom = "our worker" if of_our_worker(plan) else trainer or whom
    purpose = f"purpose {context.purpose}{f' ({why})' if why else ''}{f', for {whom}' if whom else ''}"
    model = f"{context.model.name} ({context.model.model_type})"
    return f"{model}, {purpose}, plan {plan.digest[:12]}; {versions(plan.context)}"


def versions(context: RunContext, without: str = "") -> str:
    """Returns the versions of a run, the engine's first, one left out; and where it runs."""
    names = sorted((name for name in context.packages if name not in ("ray", without)), key=lambda name: (name != "vllm", name))
    shown = [f"{name} {context.packages[name]}{_assumed(name) if name in context.assumed else ''}" for name in names]
    facts = [f"{name} {context.fact(name)} (assumed)" for name in sorted(context.assumed - {*names, without})]
    is_here = context.platform in (None, installed_platform())
    return ", ".join([*shown, f"platform {context.platform or 'unknown'}{'' if is_here else ' (assumed)'}", *facts])


def _assumed(package: str) -> str:
    return " (assumed)" if installed_version(package) else " (assumed: none is installed)"


def findings(plan: Plan, ways: Ways = COMMAND_LINE, *, whole: bool = False) -> Iterator[Finding]:
    """Yields what a plan means, what has to be done first.

    The `whole` is every row with its reason and cost, everything that cannot be decided, and every warning.
    """
    yield from map(refused, plan.refusals)
    found = list(rows(plan))
    if whole:
        yield from _every_row(plan, found)
    else:
        yield from _to_do(plan, found)
        yield from (Finding("kept", ", ".join(row.quirks), _why(row)) for row in found if row.group == Status.KEPT_USER)
        yield from _in_force(plan, found, ways)
    yield from _undecided(plan, ways, whole=whole)
    yield from _warnings(plan, ways, whole=whole)


def refused(refusal: Refusal) -> Finding:
    """Returns why a run is refused, what to do, and which switch overrides it."""
    ways_out = f"remedy: {refusal.remedy}", f"override: {refusal.switch}"
    return Finding("refused", " and ".join(map(str, refusal.quirks)), refusal.reason, (*refusal.lines, *ways_out))


def _why(row: Entry) -> str:
    return f"{row.whole} ({row.why})" if row.why else row.whole


def _every_row(plan: Plan, found: Iterable[Entry]) -> Iterator[Finding]:
    costs = {one.id: one.cost for one in plan.active if one.cost}
    order = list(ALL_HEADINGS)
    every = [(row, name) for row in found for name in row.quirks]
    for row, name in sorted(every, key=lambda pair: (order.index(pair[0].group), pair[1])):
        cost = costs.pop(name, "") if row.group == IN_FORCE else ""
        more = filter(None, (row.why, f"cost: {cost}" if cost else ""))
        yield Finding(row.group, name, f"{'required: ' if row.required else ''}{row.whole}", tuple(more))


def _to_do(plan: Plan, found: Iterable[Entry]) -> Iterator[Finding]:
    """Advice on precision, from which a run gains most, then what correctness requires, then other advice."""
    precision = {one.id for one in plan.active if one.flag == ModelFlag.DTYPE}
    advised = [row for row in found if row.group == ADVISED]
    for row in sorted(advised, key=lambda row: (precision.isdisjoint(row.quirks), not row.required)):
        yield Finding("do" if row.required else ADVISED, ", ".join(row.quirks), _why(row))


def _in_force(plan: Plan, found: Sequence[Entry], ways: Ways) -> Iterator[Finding]:
    """A finding for each cure, with what goes wrong without it, those of this model first; one for all that is speed."""
    done: dict[str, list[str]] = {}
    for row in (row for row in found if row.group == IN_FORCE):
        for name in row.quirks:
            done.setdefault(name, []).extend([row.what] if row.slot else [])
    mine = [one for one in plan.verdicts if one.id in done]
    cures = sorted((one for one in mine if one.kind is not Kind.FEATURE), key=lambda one: not _is_of_model(one))
    most = _MOST_BESIDE_ADVICE if any(row.group == ADVISED for row in found) else _MOST_CURES
    most = most if len(cures) > most + 1 else len(cures)
    would = "would be " if plan.refusals else ""
    for one in cures[:most]:
        settings = f" ({', '.join(done[one.id])})" if done[one.id] else ""
        yield Finding(f"{would}{IN_FORCE}", one.id, f"{one.title}{settings}")
    if others := [one.id for one in cures[most:]]:
        yield Finding(f"{would}in force, too", "", f"{', '.join(others)} ({ways.see_all})")
    if faster := [one.id for one in mine if one.kind is Kind.FEATURE]:
        yield Finding("features", "", ", ".join(faster))


def _is_of_model(one: Verdict) -> bool:
    """Returns whether a quirk's match asks for a kind of model, and this is one."""
    return any(leaf.fact.startswith("model.") and leaf.answer is Answer.YES for leaf in one.trace)


def _undecided(plan: Plan, ways: Ways, *, whole: bool) -> Iterator[Finding]:
    """Quirks of this model, then the others in one finding, with what decides them.

    Left out is what only a known trainer has, and advice of a quirk of which all else is settled.
    """
    if whole:
        for fact, names in plan.undecided.items():
            yield Finding("undecided", ways.supply([fact]) or fact, f"decides {', '.join(names)}")
        yield from (Finding("undecided", "", note.text) for note in plan.warnings if note.is_undecided)
        return
    open_ = {fact: names for fact, names in plan.undecided.items() if not _is_the_trainers(plan, fact)}
    of_model = {one.id for one in plan.verdicts if _is_of_model(one)}
    titles = {one.id: one.title for one in plan.verdicts}
    # Where something of it is settled, the title would read as if nothing were.
    lines = [line for line in plan.adjustments if line.status in (Status.APPLIED, Status.ALREADY_SET)]
    settled = {quirk.id for line in lines for quirk in line.quirks}
    titles |= dict.fromkeys(settled, "in force but for one condition")
    advice = settled - {note.quirk for note in plan.warnings if note.kind is NoteKind.UNDECIDED}
    every = {name for names in open_.values() for name in names} - advice
    own = sorted(every & of_model)[:MOST]
    for group in filter(None, [*([name] for name in own), sorted(every - set(own))]):
        facts = [fact for fact, names in open_.items() if not set(group).isdisjoint(names)]
        decided = f"decided by {ways.supply(facts) or ', '.join(facts)}"
        if len(group) == 1:
            yield Finding("undecided", group[0], f"{titles[group[0]]}; {decided}")
        else:
            yield Finding("undecided", f"{len(group)} quirks", decided)
    # A fact that no run has cannot be supplied.
    yield from (Finding("undecided", "", note.text) for note in plan.notes if note.is_undecided)


def _is_the_trainers(plan: Plan, fact: str) -> bool:
    slot = slot_around(fact)
    is_known = plan.context.settings.get("train.framework") is not None and not of_our_worker(plan)
    return is_known and slot not in NUMERICS and slot_named(slot).family in ("refit", "train")


def _warnings(plan: Plan, ways: Ways, *, whole: bool) -> Iterator[Finding]:
    """Warnings, those about plugins first; what cannot be checked is counted."""
    unchecked = 0
    for note in sorted(plan.warnings, key=lambda note: note.kind is not NoteKind.PLUGIN):
        if note.kind is NoteKind.UNCHECKED and not whole:
            unchecked += 1
        elif not note.is_undecided and note.kind is not NoteKind.ADVICE:
            yield Finding("warning", "", note.text)
    if unchecked:
        number = "1 setting or patch" if unchecked == 1 else f"{unchecked} settings and patches"
        yield Finding("not checked", "", f"{number}: the engine is assumed, or not installed ({ways.see_all})")


def rest(plan: Plan, *, whole: bool) -> str:
    """Returns what a list of findings leaves out, and how to see it."""
    count = Counter(one.state for one in plan.verdicts)
    states = () if whole else (State.DORMANT, State.SUPERSEDED, State.DISABLED)
    off = [f"{count[state]} {state}" for state in states if count[state]]
    others = ", ".join([*off, f"{count[State.NOT_MATCHED]} of no concern"])
    return f"not shown: {others} ({'' if whole else '--verbose; '}quirks explain ID, same options)"
