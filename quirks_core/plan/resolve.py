"""Makes the plan: a pure function of facts, quirks and switches, in four steps, and then advice.

The order of quirks has no effect, and there are no priorities. A requirement beats a default on the same slot;
`quirks_core.plan.merge` merges equally strong proposals, and a conflict names all quirks that are involved. Advice that the
resulting values make needless is taken back; it changes nothing, so that this ends there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quirks_core.declaration.versions import OLDEST, is_older, parse_version
from quirks_core.facts.context import RunContext
from quirks_core.facts.packages import NEWEST_READ
from quirks_core.plan.evaluate import Evaluated, evaluate, judge_advice
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.merge import by_place
from quirks_core.plan.propose import propose
from quirks_core.plan.records import Note, NoteKind, Plan, State
from quirks_core.plan.settle import settle
from quirks_core.plan.switches import Switches


def resolve(
    context: RunContext, loaded: Iterable[Loaded], switches: Switches | None = None, *, warnings: Iterable[Note] = ()
) -> Plan:
    """Makes the plan for a run.

    Returns:
        The plan. Refusals are part of it; `Plan.check` raises them.
    """
    switches = switches or Switches()
    evaluated = evaluate(context, loaded, switches)
    proposed = propose(context, evaluated)
    changes, adjustments, refusals = settle(context, by_place(proposed.proposals))
    planned = context.with_values(changes)
    evaluated = [judge_advice(planned, one, switches) for one in evaluated]
    advised = propose(planned, evaluated, advice=True)
    notes = sorted((*proposed.warnings, *advised.warnings), key=lambda note: note.quirk or "")
    plan = Plan.model_construct(  # the parts are validated records already
        digest="",
        context=context,
        changes=changes,
        adjustments=tuple(adjustments),
        verdicts=tuple(one.verdict for one in evaluated),
        refusals=(*proposed.refusals, *advised.refusals, *refusals),
        warnings=(*warnings, *_of_versions(context, evaluated), *notes),
        patches=tuple(planned for _, planned in proposed.patches),
    )
    return plan.model_copy(update={"digest": plan.for_processes.digest})


def _of_versions(context: RunContext, evaluated: Iterable[Evaluated]) -> Iterator[Note]:
    """Yields what nobody knows of the run's versions."""
    engine = context.packages.get("vllm", "")
    version, newest = parse_version(engine), ".".join(map(str, NEWEST_READ))
    if version is not None and version.release[:2] > NEWEST_READ:
        text = f"vllm {engine} is newer than {newest}, the newest release that was read: ranges of quirks that are open "
        yield Note(kind=NoteKind.UNREAD, text=f"{text}may have ended, and what is new there has no quirk")
    for name in OLDEST:
        ids = [one.verdict.id for one in evaluated if one.verdict.state is State.NOT_EXAMINED]
        if ids and is_older(name, context.packages.get(name)):
            text = f"not examined on {name} {context.packages[name]}, and therefore off: {', '.join(ids)}"
            yield Note(kind=NoteKind.UNEXAMINED, text=text)
