"""Decides what applies: a pure function from facts, quirks and switches to a plan.

Order cannot matter: there are no priorities. A requirement beats a default on the same slot; how equally strong wishes for a
slot become one value is the slot's own law (`quirks_core.merge`), and a conflict names everybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quirks_core import fingerprints, guard
from quirks_core.adjustments import Adjustment, Advise, Default, Patch, Refuse, Require
from quirks_core.context import RunContext
from quirks_core.errors import QuirksError, problem_of_text, words
from quirks_core.judge import judge_all, traced
from quirks_core.loaded import Loaded
from quirks_core.merge import Wish
from quirks_core.packages import distribution_of
from quirks_core.plan import Contributor, Plan, PlannedPatch, Refusal, State
from quirks_core.settle import off_switch, settle
from quirks_core.slots import SLOTS
from quirks_core.switches import Switches
from quirks_core.trace import Answer, Leaf, Trace


@dataclass(slots=True)
class _Draft:
    """What is being collected while the quirks are gone through."""

    wishes: list[Wish] = field(default_factory=list)
    patches: list[tuple[Patch, PlannedPatch]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    computed: dict[int, Any] = field(default_factory=dict)  # by the id of the function: what it returned, or its error


def resolve(
    context: RunContext, loaded: Sequence[Loaded], switches: Switches | None = None, *, warnings: Iterable[str] = ()
) -> Plan:
    """Makes the plan for a run.

    Args:
        context: The facts.
        loaded: The quirks; their order does not matter.
        switches: What the user turned off or on.
        warnings: Warnings that belong to the plan already, for example of broken plugins.

    Returns:
        The plan. Refusals are part of it; `Plan.check` raises them.
    """
    judged = judge_all(context, loaded, switches or Switches())
    draft = _Draft(warnings=list(warnings))
    draft.computed = _computed(context, [item for item, verdict in judged if verdict.state is State.ACTIVE])
    for item, verdict in judged:
        if verdict.state is State.ACTIVE:
            _collect(context, item, draft)
        elif verdict.state is State.UNKNOWN:
            draft.warnings.append(f"{item.quirk.id} cannot be decided and does nothing: {verdict.because}")
    settled = settle(context, frozenset(draft.wishes))
    _one_owner_per_target(draft)
    return Plan.build(
        context,
        changes=settled.changes,
        adjustments=settled.adjustments,
        verdicts=tuple(verdict for _, verdict in judged),
        refusals=(*draft.refusals, *settled.refusals),
        warnings=tuple(draft.warnings),
        patches=tuple(sorted((planned for _, planned in draft.patches), key=lambda item: (item.target, item.quirk.id))),
    )


def _computed(context: RunContext, active: Sequence[Loaded]) -> dict[int, Any]:
    """Calls the functions among the values of active quirks: on a copy of the facts, under the time limit."""
    adjustments = [adjustment for item in active for adjustment in item.quirk.adjustments]
    found = [getattr(adjustment, "value", getattr(adjustment, "message", None)) for adjustment in adjustments]
    functions = list({id(value): value for value in found if callable(value)}.values())
    if not functions:
        return {}
    facts = context.model_copy(deep=True)
    outcomes = guard.call_each([partial(function, facts) for function in functions], guard.time_limit_s())
    return {id(function): outcome for function, outcome in zip(functions, outcomes, strict=True)}


def _collect(context: RunContext, item: Loaded, draft: _Draft) -> None:
    """Adds what an active quirk asks for to the draft."""
    for adjustment in item.quirk.adjustments:
        if adjustment.when is not None:
            try:
                condition = traced(adjustment.when, context)
            except Exception as error:  # a third party's own kind of match may raise
                condition = Trace.of(Leaf("when", "an answer", words(error), Answer.UNKNOWN))
            if condition.answer is Answer.UNKNOWN:
                draft.warnings.append(f"{item.quirk.id}: a condition cannot be decided: {condition.decisive}")
            if condition.answer is not Answer.YES:
                continue
        try:
            _collect_one(context, item, adjustment, draft)
        except QuirksError as error:
            draft.refusals.append(
                _refusal("broken", item, f"its value cannot be used: {error}", "report it to its distribution")
            )


def _collect_one(context: RunContext, item: Loaded, adjustment: Adjustment, draft: _Draft) -> None:
    match adjustment:
        case Default() | Require():
            draft.wishes.append(_wish(item, adjustment, draft))
        case Refuse():
            draft.refusals.append(_refusal("refuse", item, adjustment.reason, adjustment.remedy))
        case Advise():
            message = _value(adjustment.message, draft)
            draft.warnings.append(f"{item.quirk.id}: {problem_of_text('its message', message) or message}")
        case Patch():
            _collect_patch(context, item, adjustment, draft)


def _wish(item: Loaded, adjustment: Default | Require, draft: _Draft) -> Wish:
    value, slot = _value(adjustment.value, draft), SLOTS[adjustment.slot]
    if problem := slot.problem(value):
        raise QuirksError(problem)
    required = isinstance(adjustment, Require)
    return Wish(
        slot=adjustment.slot,
        value=slot.plain(value),
        required=required,
        contributor=item.contributor(adjustment.reason),
        flag=item.quirk.flag,
        remedy=adjustment.remedy if isinstance(adjustment, Require) else "",
        instead_of=adjustment.instead_of if isinstance(adjustment, Require) else (),
    )


def _value(value: Any, draft: _Draft) -> Any:
    if not callable(value):
        return value
    outcome = draft.computed[id(value)]
    if isinstance(outcome, guard.TimeLimitError | guard.ExitError):
        raise outcome
    if isinstance(outcome, Exception):
        raise QuirksError(words(outcome)) from outcome
    return outcome


def _collect_patch(context: RunContext, item: Loaded, patch: Patch, draft: _Draft) -> None:
    package = distribution_of(patch.target.partition(":")[0].partition(".")[0])
    if not context.source_known(package):
        draft.warnings.append(f"{item.quirk.id}: {patch.target} is not checked: {package} is assumed or not installed")
        found = patch.expects[0]
    else:
        found = fingerprints.fingerprint(patch.target)
        if not fingerprints.is_expected(patch.target, patch.expects):
            draft.refusals.append(_drifted(context, item, patch, package))
            return
    planned = PlannedPatch(
        target=patch.target,
        source=patch.source,
        flag=item.quirk.flag,
        fingerprint=found.partition(":")[0],
        entry_point=item.entry_point,
        quirk=item.contributor(patch.reason),
    )
    draft.patches.append((patch, planned))


def _drifted(context: RunContext, item: Loaded, patch: Patch, package: str) -> Refusal:
    now = fingerprints.drift(patch.target, patch.expects).replace("\n", "\n    ")
    reason = (
        f"{patch.target} is not the source this patch was written against ({package} {context.packages[package]}):\n    {now}"
    )
    return _refusal("drift", item, reason, f"upgrade {item.distribution}, or install a {package} that it supports")


def _one_owner_per_target(draft: _Draft) -> None:
    """Wrappers go around each other; a replacement tolerates no other patch on its target."""
    targets: dict[str, list[tuple[Patch, PlannedPatch]]] = {}
    for patch, planned in draft.patches:
        targets.setdefault(planned.target, []).append((patch, planned))
    draft.refusals += _inside_of_a_replacement(targets)
    for target, patches in sorted(targets.items()):
        quirks = tuple(sorted((planned.quirk for _, planned in patches), key=lambda quirk: quirk.id))
        ids = {quirk.id for quirk in quirks}
        if len(ids) == len(patches) and not (len(ids) > 1 and any(patch.replacement for patch, _ in patches)):
            continue
        what = "patched by several quirks, and one of them replaces it" if len(ids) > 1 else "patched twice by one quirk"
        draft.refusals.append(_patch_conflict(f"{target} is {what}", quirks))


def _inside_of_a_replacement(targets: Mapping[str, Sequence[tuple[Patch, PlannedPatch]]]) -> Iterator[Refusal]:
    """A patch of what another quirk has replaced as a whole would be put on code that it was not written against."""
    for outer, patches in sorted(targets.items()):
        for owner in [planned.quirk for patch, planned in patches if patch.replacement]:
            for inner in sorted(name for name in targets if name.startswith(f"{outer}.")):
                others = [planned.quirk for _, planned in targets[inner] if planned.quirk.id != owner.id]
                if others:
                    yield _patch_conflict(f"{outer} is replaced, and {inner} in it is patched", (owner, *others))


def _patch_conflict(what: str, quirks: Sequence[Contributor]) -> Refusal:
    ids = {quirk.id for quirk in quirks}
    return Refusal(
        kind="conflict",
        reason=f"{what}: {', '.join(str(quirk) for quirk in quirks)}",
        remedy="decide which of them you need and switch the others off",
        switch=" or ".join(off_switch(sorted(ids - {name}) or [name]) for name in sorted(ids)),
        quirks=tuple(quirks),
    )


def _refusal(kind: str, item: Loaded, reason: str, remedy: str) -> Refusal:
    return Refusal(
        kind=kind, reason=reason, remedy=remedy, switch=off_switch([item.quirk.id]), quirks=(item.contributor(reason),)
    )
