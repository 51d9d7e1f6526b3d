"""Tells whether a quirk concerns a run, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from quirks_core import guard
from quirks_core.context import FACTS, InstalledFacts, RunContext, is_known_fact
from quirks_core.errors import nearest, shortened, shown, words
from quirks_core.loaded import Loaded
from quirks_core.match import Facts, InRange, Match, is_plain
from quirks_core.plain import is_plain as is_json
from quirks_core.plain import plain
from quirks_core.plan import State, Verdict
from quirks_core.probes import Probe, ask, described
from quirks_core.quirk import Quirk
from quirks_core.slots import SLOTS
from quirks_core.switches import Switches
from quirks_core.trace import Answer, Leaf, Trace, all_of, any_of
from quirks_core.versions import Affected

_STATES = {Answer.YES: State.ACTIVE, Answer.UNKNOWN: State.UNKNOWN, Answer.NO: State.NOT_MATCHED}


def judge_all(context: RunContext, loaded: Sequence[Loaded], switches: Switches) -> list[tuple[Loaded, Verdict]]:
    """Judges every quirk, in order of their ids."""
    in_order = sorted(loaded, key=lambda item: item.quirk.id)
    replaced = replacements(in_order, switches)
    return [(item, judge(context, item, switches, replaced.get(item.quirk.id, ()))) for item in in_order]


def replacements(loaded: Iterable[Loaded], switches: Switches) -> Mapping[str, Sequence[Loaded]]:
    """Returns, by the id of a quirk, those that supersede it; one that is switched off supersedes nothing."""
    found: dict[str, list[Loaded]] = {}
    for item in loaded:
        switch = switches.of(item) if item.quirk.supersedes else None
        for replaced in () if switch and not switch.on else item.quirk.supersedes:
            found.setdefault(replaced, []).append(item)
    return found


def judge(context: RunContext, item: Loaded, switches: Switches, superseded_by: Sequence[Loaded] = ()) -> Verdict:
    """Judges one quirk.

    Args:
        context: The facts.
        item: The quirk.
        switches: What the user turned off or on.
        superseded_by: The quirks that replace it.
    """
    matched, affected = _traces(context, item.quirk)
    trace = all_of((matched, affected))
    state = _STATES[trace.answer]
    if matched.answer is Answer.YES and affected.answer is Answer.NO:
        state = State.DORMANT
    because = _reason(trace)
    switch = switches.of(item)
    if switch is not None:
        state = State.ACTIVE if switch.on else State.DISABLED
        because = f"{switch}; {because}" if switch.on else str(switch)
    elif superseded_by:
        state, because = State.SUPERSEDED, "superseded by " + " and ".join(map(str, superseded_by))
    return Verdict.model_construct(  # every field is ours and typed; validation would cost more than the matching
        id=item.quirk.id,
        title=item.quirk.title,
        flag=item.quirk.flag,
        distribution=item.distribution,
        version=item.version,
        verdict=trace.answer,
        state=state,
        because=because,
        trace=trace.leaves,
    )


def _traces(context: RunContext, quirk: Quirk) -> tuple[Trace, Trace]:
    """The answers of match and versions. A quirk that is bound to other models is not looked at any further."""
    nothing = Trace(Answer.YES, (), None)
    try:
        types = quirk.model_types
        if types is not None and (model_type := context.model.model_type) is not None and model_type not in types:
            return Trace.of(Leaf("model.model_type", " or ".join(sorted(types)), model_type, Answer.NO)), nothing
        return traced(quirk.match, context), affected(context, quirk)
    except Exception as error:  # a third party's own kind of match may raise; then only that quirk is unknown
        return Trace.of(Leaf("match", "an answer", words(error), Answer.UNKNOWN)), nothing


def traced(match: Match, context: Facts) -> Trace:
    """Evaluates a match; one of a third party's own kind under the time limit.

    Raises:
        TypeError: It did not return a trace.
        Exception: Whatever else a third party's own kind of match raises.
    """
    if is_plain(match):
        return match.trace(context)
    return guard.call(lambda: _read(match.trace(context)), guard.time_limit_s())


def _read(answer: object) -> Trace:
    """Takes what somebody else's match answered: into the plan, which is JSON, go values of plain types only."""
    if not isinstance(answer, Trace):
        raise TypeError(f"trace returned {shown(answer)}, which is no Trace")
    leaves = tuple(map(_leaf, answer.leaves))
    given = Answer(answer.answer)
    decisive = _leaf(answer.decisive) if answer.decisive is not None else next(iter(leaves), None)
    return Trace(given, leaves, decisive or Leaf("match", "a reason", None, given))


def _leaf(leaf: Leaf) -> Leaf:
    fact, wanted, got, answer = leaf
    return Leaf(shortened(str(fact)), shortened(str(wanted)), plain(got) if is_json(got) else shown(got), Answer(answer))


def affected(facts: InstalledFacts, quirk: Quirk) -> Trace:
    """Compares versions: alternatives within one package, all packages together; what they leave open, probes settle."""
    if len(quirk.affected) == 1:
        return _in_range(facts, quirk, quirk.affected[0])
    packages = dict.fromkeys(item.package for item in quirk.affected)
    return all_of(any_of(_in_range(facts, quirk, item) for item in quirk.affected if item.package == name) for name in packages)


def _in_range(facts: InstalledFacts, quirk: Quirk, item: Affected) -> Trace:
    trace = InRange(item).trace(facts)
    if trace.answer is Answer.UNKNOWN and facts.source_known(item.package):
        for probe in quirk.evidence:
            if isinstance(probe, Probe) and (answer := ask(probe, item.package)) is not Answer.UNKNOWN:
                name = f"packages.{item.package}"
                return Trace.of(Leaf(name, f"{item} (a source build: settled by {described(probe)})", facts.fact(name), answer))
    return trace


def _reason(trace: Trace) -> str:
    if trace.decisive is None or trace.answer is Answer.YES:
        return "every condition holds"
    fact = trace.decisive.fact
    if trace.answer is Answer.UNKNOWN and trace.decisive.got is None and not (is_known_fact(fact) or fact == "match"):
        return f"{trace.decisive} (no fact has that name{nearest(fact, (*FACTS, *SLOTS))})"
    return str(trace.decisive)
