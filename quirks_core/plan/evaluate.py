"""Evaluates quirks against a run's facts: match, versions and the adjustments' own conditions, together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from quirks_core.base.errors import nearest, words
from quirks_core.configuration.slots import SLOTS
from quirks_core.declaration.adjustments import Adjustment, Advise, Patch
from quirks_core.declaration.match import InRange, Match
from quirks_core.declaration.probes import ask
from quirks_core.declaration.quirk import Quirk
from quirks_core.declaration.trace import Answer, Leaf, Trace, all_of, any_of
from quirks_core.declaration.versions import Affected, is_older, parse_version
from quirks_core.facts.context import InstalledFacts, RunContext
from quirks_core.facts.fact_table import FACTS, is_known_fact
from quirks_core.facts.unknown import Facts
from quirks_core.plan.drift import drift_of
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.records import Note, NoteKind, State, Verdict
from quirks_core.plan.switches import Switches

_STATES = {Answer.YES: State.ACTIVE, Answer.UNKNOWN: State.UNKNOWN, Answer.NO: State.NOT_MATCHED}
_NOTHING = Trace(Answer.YES, (), None)


class Evaluated(NamedTuple):
    """One quirk, evaluated for a run.

    Attributes:
        item: The quirk.
        verdict: Whether it concerns the run, and why.
        adjustments: If the quirk is active, the adjustments whose condition is true.
        undecided: A warning if the quirk cannot be decided; if it is active, one for each condition that cannot be, whose
            adjustment does nothing.
    """

    item: Loaded
    verdict: Verdict
    adjustments: tuple[Adjustment, ...] = ()
    undecided: tuple[Note, ...] = ()


def evaluate(context: RunContext, loaded: Iterable[Loaded], switches: Switches) -> list[Evaluated]:
    """Evaluates every quirk, in order of their ids; a quirk replaces those that it supersedes only where it applies itself."""
    alone = [evaluate_one(context, item, switches) for item in sorted(loaded, key=lambda item: item.quirk.id)]
    successors: dict[str, list[Evaluated]] = {}
    for one in alone:
        for replaced in one.item.quirk.supersedes:
            successors.setdefault(replaced, []).append(one)
    replacing = ((one, successors.get(one.item.quirk.id)) for one in alone)
    return [_superseded(one, others) if others else one for one, others in replacing]


def evaluate_one(context: RunContext, item: Loaded, switches: Switches) -> Evaluated:
    """Evaluates one quirk, without the quirks that supersede it."""
    types, known = item.quirk.model_types, context.loaded.model_types
    if types is not None and known and types.isdisjoint(known):  # for other models: not evaluated further
        wanted = " or ".join(sorted(types))
        matched, ranges = Trace.of(Leaf("model.model_type", wanted, context.fact("model.model_type"), Answer.NO)), _NOTHING
    else:
        matched, ranges = matches(item.quirk.match, context), affected(context, item.quirk)
    trace = matched if ranges is _NOTHING else all_of((matched, ranges))
    state = _STATES[trace.answer]
    if matched.answer is Answer.YES and ranges.answer is Answer.NO:
        state = State.DORMANT
    elif matched.answer is not Answer.NO and _is_unexamined(ranges):
        state = State.NOT_EXAMINED
    because = _reason(trace)
    switch = switches.of(item)
    if switch is not None:
        state = State.ACTIVE if switch.on else State.DISABLED
        because = f"{switch}; {because}" if switch.on else str(switch)
    verdict = Verdict(
        id=item.quirk.id,
        title=item.quirk.title,
        flag=item.quirk.flag,
        kind=item.quirk.kind,
        distribution=item.distribution,
        version=item.version,
        verdict=trace.answer,
        state=state,
        because=because,
        cost=item.quirk.cost,
        switch=switch,
        trace=trace.leaves,
    )
    if state in (State.ACTIVE, State.NOT_EXAMINED):
        return _with_adjustments(context, item, verdict)
    if state is State.UNKNOWN:
        note = _undecided(item, trace, f"{item.quirk.id} cannot be decided and does nothing: {because}")
        return Evaluated(item, verdict, undecided=(note,))
    return Evaluated(item, verdict)


def judge_advice(planned: RunContext, one: Evaluated, switches: Switches) -> Evaluated:
    """Takes back advice that the values of the plan make needless.

    A quirk that does nothing but advise no longer concerns such a run; of others, a piece of advice no longer counts.
    """
    if one.verdict.state is not State.ACTIVE or not any(isinstance(item, Advise) for item in one.adjustments):
        return one
    if all(isinstance(item, Advise) for item in one.item.quirk.adjustments) and not one.item.quirk.supersedes:
        again = evaluate_one(planned, one.item, switches)
        if again.verdict.state in (State.NOT_MATCHED, State.DORMANT):
            return again
    still = _with_adjustments(planned, one.item, one.verdict).adjustments
    return one._replace(adjustments=tuple(item for item in one.adjustments if item in still))


def affected(facts: InstalledFacts, quirk: Quirk) -> Trace:
    """Compares versions: any range of a package, and all packages; if that is unknown, probes and patched sources decide.

    Before the oldest version that was examined, a patch fits only a source that it was written against; else it is unknown.
    """
    packages = dict.fromkeys(item.package for item in quirk.affected)
    found = [any_of(_in_range(facts, quirk, item) for item in quirk.affected if item.package == name) for name in packages]
    trace = found[0] if len(found) == 1 else all_of(found) if found else _NOTHING
    if trace.answer is Answer.YES and (misfit := _misfit(facts, quirk)) is not None:
        return all_of((trace, Trace.of(misfit)))
    return trace


def matches(match: Match, facts: Facts) -> Trace:
    """Evaluates a match; if a third party's own kind of match raises, the answer is unknown, with the error."""
    try:
        trace = match.trace(facts)
        if isinstance(trace, Trace):
            return trace
        problem = f"it returned a {type(trace).__name__}, which is no Trace"
    except (Exception, SystemExit) as error:  # a plugin does not end the program
        problem = words(error)
    return Trace.of(Leaf("match", "an answer", problem, Answer.UNKNOWN))


def _with_adjustments(context: RunContext, item: Loaded, verdict: Verdict) -> Evaluated:
    holding, undecided, condition = [], [], _NOTHING
    for adjustment in item.quirk.adjustments:
        condition = _NOTHING if adjustment.when is None else matches(adjustment.when, context)
        if condition.answer is Answer.YES:
            holding.append(adjustment)
        elif condition.answer is Answer.UNKNOWN:
            text = f"{item.quirk.id}: a condition cannot be decided: {condition.decisive}"
            is_advice = isinstance(adjustment, Advise)
            undecided.append(_undecided(item, condition, text, NoteKind.UNDECIDED_ADVICE if is_advice else NoteKind.UNDECIDED))
    if condition.answer is Answer.NO and not holding and not undecided and verdict.switch is None:
        because = f"it does nothing in this run: {condition.decisive}"
        return Evaluated(item, replace(verdict, state=State.NOT_MATCHED, because=because))
    if verdict.state is State.NOT_EXAMINED:
        return Evaluated(item, verdict)
    return Evaluated(item, verdict, tuple(holding), tuple(undecided))


def _undecided(item: Loaded, trace: Trace, text: str, kind: NoteKind = NoteKind.UNDECIDED) -> Note:
    facts = sorted({leaf.fact for leaf in trace.leaves if leaf.answer is Answer.UNKNOWN and is_known_fact(leaf.fact)})
    return Note(kind=kind, quirk=item.quirk.id, about=tuple(facts), text=text)


def _superseded(one: Evaluated, successors: Sequence[Evaluated]) -> Evaluated:
    """Replaces a quirk by the successors that apply; beside one that is undecided it stays, and the verdict names that one.

    What the successors are superseded by themselves does not matter, so that the order of a chain does not either.
    """
    if one.verdict.switch is not None:
        return one
    if applying := [other.item for other in successors if other.verdict.state is State.ACTIVE]:
        because = "superseded by " + " and ".join(map(str, applying))
        return Evaluated(one.item, replace(one.verdict, state=State.SUPERSEDED, because=because))
    undecided = [f"{other.item} ({other.verdict.because})" for other in successors if other.verdict.state is State.UNKNOWN]
    if not undecided or one.verdict.state is not State.ACTIVE:
        return one
    because = f"{one.verdict.because}; not superseded, because it is undecided whether this applies: {' and '.join(undecided)}"
    return one._replace(verdict=replace(one.verdict, because=because))


def _in_range(facts: InstalledFacts, quirk: Quirk, item: Affected) -> Trace:
    trace, name = InRange(item).trace(facts), f"packages.{item.package}"
    settles: tuple[Answer, ...] = (Answer.YES, Answer.NO)
    version, why = facts.fact(name), "a source build"
    if trace.answer is Answer.NO and not quirk.is_examined(item.package, version):
        why, settles = "earlier versions were not examined", (Answer.YES,)  # the bug may look otherwise there
        trace = Trace.of(Leaf(name, f"{item} ({why})", version, Answer.UNKNOWN))
    if trace.answer is Answer.UNKNOWN and facts.source_known(item.package):
        for probe in quirk.probes:
            if (answer := ask(probe, item.package, facts.source)) in settles:
                return Trace.of(Leaf(name, f"{item} ({why}: settled by {probe})", version, answer))
        is_patched = any(isinstance(one, Patch) and one.package == item.package for one in quirk.adjustments)
        if is_older(item.package, version) and is_patched and _misfit(facts, quirk) is None:
            return Trace.of(Leaf(name, f"{item} ({why}: settled by the source that is patched)", version, Answer.YES))
    return trace


def _is_unexamined(affected: Trace) -> bool:
    """Returns whether a version that is known leaves it open whether the quirk is needed."""
    leaf = affected.decisive if affected.answer is Answer.UNKNOWN else None
    return leaf is not None and isinstance(leaf.got, str) and parse_version(leaf.got) is not None


def _misfit(facts: InstalledFacts, quirk: Quirk) -> Leaf | None:
    """The first patch whose target has another source in a version that was not examined; None if there is none."""
    for patch in (item for item in quirk.adjustments if isinstance(item, Patch)):
        version = facts.fact(f"packages.{patch.package}")
        is_open = is_older(patch.package, version) and facts.source_known(patch.package)
        if is_open and drift_of(patch, quirk, facts.source) is not None:
            wanted = f"a version where the source of {patch.target} is one that the patch was written against"
            return Leaf(f"packages.{patch.package}", wanted, version, Answer.UNKNOWN)
    return None


def _reason(trace: Trace) -> str:
    if trace.decisive is None or trace.answer is Answer.YES:
        return "every condition holds"
    fact = trace.decisive.fact
    if trace.answer is Answer.UNKNOWN and trace.decisive.got is None and not (is_known_fact(fact) or fact == "match"):
        return f"{trace.decisive} (no fact has that name{nearest(fact, (*FACTS, *SLOTS))})"
    return str(trace.decisive)
