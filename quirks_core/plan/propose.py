"""Collects what active quirks request and computes all values: proposals for slots, patches, refusals and advice."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from quirks_core.base.errors import QuirksError, problem_of_text, words
from quirks_core.configuration.slots import engine_problem, find_slot
from quirks_core.declaration.adjustments import (
    Adjustment,
    Advise,
    Default,
    Patch,
    Refuse,
    Relation,
    Require,
    problem_of_operand,
)
from quirks_core.facts.context import RunContext
from quirks_core.plan.drift import drift_of
from quirks_core.plan.evaluate import Evaluated
from quirks_core.plan.loaded import Loaded
from quirks_core.plan.merge import Proposal
from quirks_core.plan.records import Contributor, Note, NoteKind, PlannedPatch, Refusal


@dataclass(slots=True)
class Proposed:
    """The requests of the active quirks of one run.

    Attributes:
        proposals: Requests for slots.
        patches: Patches with their declarations.
        refusals: Reasons why the run must not start.
        warnings: Patches that cannot be checked, or advice and what cannot be decided.
    """

    proposals: list[Proposal] = field(default_factory=list)
    patches: list[tuple[Patch, PlannedPatch]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    warnings: list[Note] = field(default_factory=list)


def propose(context: RunContext, evaluated: Iterable[Evaluated], *, advice: bool = False) -> Proposed:
    """Collects the requests of every active quirk: its advice and what is undecided, or everything else."""
    found = Proposed()
    for one in evaluated:
        found.warnings += one.undecided if advice else ()
        for adjustment in (item for item in one.adjustments if isinstance(item, Advise) is advice):
            try:
                _propose_one(context, one.item, adjustment, found)
            except QuirksError as error:
                reason = f"its value cannot be used: {error}"
                found.refusals.append(_refusal("broken", one.item, reason, "report it to its distribution"))
    found.patches.sort(key=lambda one: (one[1].target, one[1].quirk.id))  # whatever the order of registration
    found.refusals += _patch_conflicts(found.patches)
    return found


def _propose_one(context: RunContext, item: Loaded, adjustment: Adjustment, found: Proposed) -> None:
    match adjustment:
        case Default() | Require():
            found.proposals.append(_proposal(context, item, adjustment))
        case Refuse():
            found.refusals.append(_refusal("refuse", item, adjustment.reason, adjustment.remedy))
        case Advise():
            message = computed(context, adjustment.message)
            text = f"{item.quirk.id}: {problem_of_text('its message', message) or message}"
            found.warnings.append(Note(kind=NoteKind.ADVICE, quirk=item.quirk.id, text=text))
        case Patch():
            _propose_patch(context, item, adjustment, found)


def _proposal(context: RunContext, item: Loaded, adjustment: Default | Require) -> Proposal:
    slot, relation = find_slot(adjustment.slot), adjustment.relation
    operand, problem = adjustment.operand, None
    if not callable(operand):
        operand = copy.deepcopy(operand)  # it was checked, and made plain, when it was declared
    else:
        operand = computed(context, operand)
        if (problem := problem_of_operand(slot, relation, operand)) is None:
            operand = [slot.plain(value) for value in operand] if relation is Relation.ONE_OF else slot.plain(operand)
    if problem is None and context.source_known("vllm"):
        values = operand if relation is Relation.ONE_OF else [operand]
        problem = next((why for value in values if (why := engine_problem(slot.name, value, context.source))), None)
    if problem:
        raise QuirksError(problem)
    required = isinstance(adjustment, Require)
    return Proposal(
        place=(slot.name,),
        relation=relation,
        operand=operand,
        required=required,
        contributor=item.contributor(adjustment.reason),
        flag=item.quirk.flag,
        remedy=adjustment.remedy if isinstance(adjustment, Require) else "",
        instead_of=adjustment.instead_of if isinstance(adjustment, Require) else (),
    )


def computed(context: RunContext, value: Any) -> Any:
    """Returns the value; if it is a function, what the function returns.

    Raises:
        QuirksError: The function raised an error.
    """
    if not callable(value):
        return value
    try:
        return value(context)
    except (Exception, SystemExit) as error:  # a plugin does not end the program
        raise QuirksError(words(error)) from error


def _propose_patch(context: RunContext, item: Loaded, patch: Patch, found: Proposed) -> None:
    package = patch.package
    found_here = context.source.fingerprint(patch.target)
    if not context.source_known(package):
        text = f"{item.quirk.id}: {patch.target} is not checked: {package} is assumed or not installed"
        found.warnings.append(Note(kind=NoteKind.UNCHECKED, quirk=item.quirk.id, about=(patch.target,), text=text))
        found_here = patch.expects[0] if patch.expects else ""
    elif problem := drift_of(patch, item.quirk, context.source):
        here = f"{package} {context.packages[package]}"
        remedy = f"upgrade {item.distribution}, or install a version of {package} that it supports ({here} is installed)"
        found.refusals.append(_refusal("drift", item, problem.reason, remedy, target=patch.target, lines=problem.lines))
        return
    planned = PlannedPatch(
        target=patch.target,
        source=patch.source,
        flag=item.quirk.flag,
        fingerprint=found_here or "",
        entry_point=item.entry_point,
        quirk=item.contributor(patch.reason),
    )
    found.patches.append((patch, planned))


def _patch_conflicts(patches: Sequence[tuple[Patch, PlannedPatch]]) -> Iterator[Refusal]:
    """Wrappers can be nested; a replacement or an addition allows no other patch of its target or of anything in it."""
    for target in sorted({planned.target for _, planned in patches}):
        on_it = [(patch, planned.quirk) for patch, planned in patches if planned.target == target]
        ids = {quirk.id for _, quirk in on_it}
        owners = [quirk for patch, quirk in on_it if not patch.wrapper]
        for inner in (planned for _, planned in patches if planned.target.startswith(f"{target}.")):
            if others := [owner for owner in owners if owner.id != inner.quirk.id]:
                reason = f"{target} is replaced, and {inner.target} in it is patched"
                yield _patch_conflict(target, reason, [*others, inner.quirk])
        if len(ids) < len(on_it):
            yield _patch_conflict(target, f"{target} is patched twice by one quirk", [quirk for _, quirk in on_it])
        elif len(ids) > 1 and owners:
            reason = f"{target} is patched by several quirks, and one of them replaces it"
            yield _patch_conflict(target, reason, [quirk for _, quirk in on_it])


def _patch_conflict(target: str, reason: str, quirks: Sequence[Contributor]) -> Refusal:
    by_id = {quirk.id: quirk for quirk in quirks}
    losers = [tuple(sorted(by_id.keys() - {name})) or (name,) for name in sorted(by_id)]
    remedy = "decide which of them you need and switch the others off"
    in_order = tuple(sorted(quirks, key=lambda quirk: quirk.id))
    return Refusal.of("conflict", reason, remedy, off=losers, target=target, quirks=in_order)


def _refusal(kind: str, item: Loaded, reason: str, remedy: str, **more: Any) -> Refusal:
    return Refusal.of(kind, reason, remedy, off=[(item.quirk.id,)], quirks=(item.contributor(reason),), **more)
