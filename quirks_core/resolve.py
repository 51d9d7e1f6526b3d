"""Decides what applies: a pure function from facts, quirks and switches to a plan.

Order cannot matter: there are no priorities. A requirement beats a default on the same slot; within one strength equal
values are credited to all who asked, and unequal ones are a conflict that names everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quirks_core import sources
from quirks_core.adjustments import ABSENT, Adjustment, Advise, Default, Patch, Refuse, Require
from quirks_core.context import RunContext
from quirks_core.errors import QuirksError
from quirks_core.match import InRange
from quirks_core.plan import (
    Contributor,
    Plan,
    PlannedAdjustment,
    PlannedPatch,
    Refusal,
    State,
    Status,
    Strength,
    Verdict,
    canonical,
)
from quirks_core.quirk import Quirk, StaticProbe
from quirks_core.slots import SLOTS
from quirks_core.switches import Switches
from quirks_core.trace import Answer, Leaf, Trace, all_of, any_of
from quirks_core.versions import Affected


@dataclass(frozen=True, slots=True)
class Loaded:
    """A quirk and the plugin it comes from."""

    quirk: Quirk
    distribution: str
    version: str
    entry_point: str

    def contributor(self, reason: str = "") -> Contributor:
        """Names the quirk as the source of an adjustment."""
        return Contributor(
            id=self.quirk.id,
            distribution=self.distribution,
            version=self.version,
            location=str(self.quirk.location),
            reason=reason or self.quirk.title,
        )


@dataclass(frozen=True, slots=True)
class _Claim:
    """A quirk's wish for a slot, its value already computed."""

    slot: str
    value: Any
    strength: Strength
    flag: str
    contributor: Contributor
    remedy: str
    instead_of: tuple[Any, ...]

    @property
    def key(self) -> str:
        return canonical(self.value)


@dataclass(slots=True)
class _Draft:
    """What is being collected while the quirks are gone through."""

    claims: list[_Claim] = field(default_factory=list)
    patches: list[PlannedPatch] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def resolve(
    context: RunContext, loaded: Sequence[Loaded], switches: Switches | None = None, *, warnings: Iterable[str] = ()
) -> Plan:
    """Makes the plan for a run.

    Args:
        context: The facts.
        loaded: The quirks; their order does not matter.
        switches: What the user switched off.
        warnings: Warnings that belong to the plan already, for example of broken plugins.

    Returns:
        The plan. Refusals are part of it; `Plan.check` raises them.
    """
    switches = switches or Switches({})
    draft = _Draft(warnings=list(warnings))
    verdicts = []
    for item in sorted(loaded, key=lambda item: item.quirk.id):
        verdict = judge(context, item, switches)
        verdicts.append(verdict)
        if verdict.state is State.ACTIVE:
            _collect(context, item, draft)
        elif verdict.state is State.UNKNOWN:
            draft.warnings.append(f"{item.quirk.id} cannot be decided and does nothing: {verdict.because}")
    adjustments = _settle(context, draft)
    _one_owner_per_target(draft)
    return Plan.build(
        context,
        adjustments=adjustments,
        verdicts=tuple(verdicts),
        refusals=tuple(draft.refusals),
        warnings=tuple(draft.warnings),
        patches=tuple(sorted(draft.patches, key=lambda patch: patch.target)),
    )


def judge(context: RunContext, item: Loaded, switches: Switches) -> Verdict:
    """Tells whether a quirk concerns a run, and why."""
    quirk = item.quirk
    matched = _matched(context, quirk)
    affected = _affected(context, quirk)
    trace = all_of((matched, affected))
    state = {Answer.YES: State.ACTIVE, Answer.UNKNOWN: State.UNKNOWN, Answer.NO: State.NOT_MATCHED}[trace.answer]
    if matched.answer is Answer.YES and affected.answer is Answer.NO:
        state = State.DORMANT
    because = str(trace.decisive) if trace.decisive and trace.answer is not Answer.YES else "every condition holds"
    if layer := switches.layer(quirk):
        state, because = State.DISABLED, f"switched off by {layer}"
    return Verdict.model_construct(  # every field is ours and typed; validation would cost more than the matching
        id=quirk.id,
        title=quirk.title,
        flag=quirk.flag,
        distribution=item.distribution,
        version=item.version,
        verdict=trace.answer,
        state=state,
        because=because,
        trace=trace.leaves,
    )


def _matched(context: RunContext, quirk: Quirk) -> Trace:
    """A third party's own kind of match may raise; then only that quirk is unknown."""
    try:
        return quirk.match.trace(context)
    except Exception as error:
        return Trace.of(Leaf("match", "an answer", f"{type(error).__name__}: {error}", Answer.UNKNOWN))


def _affected(context: RunContext, quirk: Quirk) -> Trace:
    """Alternatives within one package, all packages together; a source build is settled by the quirk's probe."""
    if len(quirk.affected) == 1:
        return _in_range(context, quirk, quirk.affected[0])
    packages = dict.fromkeys(item.package for item in quirk.affected)
    return all_of(
        any_of(_in_range(context, quirk, item) for item in quirk.affected if item.package == name) for name in packages
    )


def _in_range(context: RunContext, quirk: Quirk, affected: Affected) -> Trace:
    trace = InRange(affected).trace(context)
    if trace.answer is Answer.UNKNOWN and context.source_known(affected.package):
        for probe in quirk.evidence:
            if isinstance(probe, StaticProbe) and (found := sources.search(probe.module, probe.pattern)) is not None:
                answer = Answer.YES if found is probe.found_means_affected else Answer.NO
                wanted = f"{affected} (a source build: settled by /{probe.pattern}/ in {probe.module})"
                return Trace.of(
                    Leaf(f"packages.{affected.package}", wanted, context.fact(f"packages.{affected.package}"), answer)
                )
    return trace


def _collect(context: RunContext, item: Loaded, draft: _Draft) -> None:
    """Adds what an active quirk asks for to the draft."""
    for adjustment in item.quirk.adjustments:
        if adjustment.when is not None:
            condition = adjustment.when.trace(context)
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
            draft.claims.append(_claim(context, item, adjustment))
        case Refuse():
            draft.refusals.append(_refusal("refuse", item, adjustment.reason, adjustment.remedy))
        case Advise():
            draft.warnings.append(f"{item.quirk.id}: {_value(adjustment.message, context)}")
        case Patch():
            _collect_patch(context, item, adjustment, draft)


def _claim(context: RunContext, item: Loaded, adjustment: Default | Require) -> _Claim:
    value = _value(adjustment.value, context)
    if problem := SLOTS[adjustment.slot].problem(value):
        raise QuirksError(problem)
    if SLOTS[adjustment.slot].type is float:
        value = float(value)  # 600 and 600.0 are the same wish
    required = isinstance(adjustment, Require)
    return _Claim(
        slot=adjustment.slot,
        value=value,
        strength=Strength.REQUIRE if required else Strength.DEFAULT,
        flag=item.quirk.flag,
        contributor=item.contributor(adjustment.reason),
        remedy=adjustment.remedy if isinstance(adjustment, Require) else "",
        instead_of=adjustment.instead_of if isinstance(adjustment, Require) else (),
    )


def _value(value: Any | Callable[[RunContext], Any], context: RunContext) -> Any:
    if not callable(value):
        return value
    try:
        return value(context)
    except Exception as error:
        raise QuirksError(f"{type(error).__name__}: {error}") from error


def _collect_patch(context: RunContext, item: Loaded, patch: Patch, draft: _Draft) -> None:
    package = patch.target.partition(":")[0].partition(".")[0]
    found = sources.fingerprint(patch.target) if context.source_known(package) else patch.fingerprints[0]
    if not context.source_known(package):
        draft.warnings.append(f"{item.quirk.id}: {patch.target} is not checked: {package} is assumed or not installed")
    elif found not in patch.fingerprints:
        now = "does not exist" if found in (ABSENT, "homeless") else f"has fingerprint {found[:12]}…"
        reason = (
            f"{patch.target} is not the source this patch was written against "
            f"({package} {context.packages[package]}: the target {now})"
        )
        remedy = f"upgrade {item.distribution}, or install a {package} that it supports"
        draft.refusals.append(_refusal("drift", item, reason, remedy))
        return
    draft.patches.append(
        PlannedPatch(
            target=patch.target,
            flag=item.quirk.flag,
            fingerprint=found,
            entry_point=item.entry_point,
            quirk=item.contributor(patch.reason),
        )
    )


def _settle(context: RunContext, draft: _Draft) -> tuple[PlannedAdjustment, ...]:
    """Settles every slot: groups equal wishes, finds the winner, holds it against what the user typed."""
    settled: list[PlannedAdjustment] = []
    for slot in sorted({claim.slot for claim in draft.claims}):
        claims = [claim for claim in draft.claims if claim.slot == slot]
        required = [claim for claim in claims if claim.strength is Strength.REQUIRE]
        strongest = required or claims
        contested = len({claim.key for claim in strongest}) > 1
        if contested:
            draft.refusals.append(_conflict(slot, strongest))
        groups: dict[tuple[Strength, str], list[_Claim]] = {}
        for claim in claims:
            groups.setdefault((claim.strength, claim.key), []).append(claim)
        for _, group in sorted(groups.items()):
            wins = group[0] in strongest
            status, reason = (
                (Status.OUTRANKED, "a requirement on the same slot wins")
                if not wins
                else (Status.CONFLICT, "equally strong adjustments disagree")
                if contested
                else _against_user(context, group, draft)
            )
            settled.append(
                PlannedAdjustment(
                    slot=slot,
                    value=group[0].value,
                    strength=group[0].strength,
                    flag=group[0].flag,
                    status=status,
                    reason=reason,
                    quirks=tuple(claim.contributor for claim in group),
                )
            )
    return tuple(settled)


def _against_user(context: RunContext, group: list[_Claim], draft: _Draft) -> tuple[Status, str]:
    """Holds the winning wish against the value that the slot has."""
    claim = group[0]
    now = context.settings.get(claim.slot)
    if claim.slot not in context.typed:
        if now == claim.value:
            return Status.ALREADY_SET, f"the configuration's default is {now!r} already"
        return Status.APPLIED, f"changed from the configuration's default {now!r}"
    if now == claim.value:
        return Status.ALREADY_SET, "the user typed the same value"
    if claim.strength is Strength.DEFAULT:
        return Status.KEPT_USER, f"the user typed {now!r}, which wins over a default"
    # Every requirement must be content, not only the first.
    if all(item.instead_of and now not in item.instead_of for item in group):
        return Status.KEPT_USER, f"the user typed {now!r}, which serves as well"
    ids = [item.contributor.id for item in group]
    draft.refusals.append(
        Refusal(
            kind="require",
            slot=claim.slot,
            reason=f"{claim.slot} must be {claim.value!r}, but {now!r} was set explicitly: {claim.contributor.reason}",
            remedy=claim.remedy or f"remove {claim.slot} from the configuration, or set it to {claim.value!r}",
            switch=_switch(ids),
            quirks=tuple(item.contributor for item in group),
        )
    )
    return Status.REFUSED, f"the user typed {now!r}, which contradicts a requirement"


def _conflict(slot: str, claims: list[_Claim]) -> Refusal:
    wishes = "; ".join(f"{claim.contributor} wants {claim.value!r}" for claim in claims)
    switches = " or ".join(_switch([claim.contributor.id]) for claim in claims)
    return Refusal(
        kind="conflict",
        slot=slot,
        reason=f"{slot} is wanted with different values: {wishes}",
        remedy="decide which of them you need and switch the other off",
        switch=switches,
        quirks=tuple(claim.contributor for claim in claims),
    )


def _one_owner_per_target(draft: _Draft) -> None:
    """A patch target has one owner: two quirks that patch the same attribute are a conflict."""
    owners: dict[str, list[PlannedPatch]] = {}
    for patch in draft.patches:
        owners.setdefault(patch.target, []).append(patch)
    for target, patches in owners.items():
        if len(patches) > 1:
            ids = [patch.quirk.id for patch in patches]
            draft.refusals.append(
                Refusal(
                    kind="conflict",
                    reason=f"{target} is patched by several quirks: {', '.join(ids)}",
                    remedy="decide which of them you need and switch the others off",
                    switch=" or ".join(_switch([name]) for name in ids),
                    quirks=tuple(patch.quirk for patch in patches),
                )
            )


def _refusal(kind: str, item: Loaded, reason: str, remedy: str) -> Refusal:
    return Refusal(kind=kind, reason=reason, remedy=remedy, switch=_switch([item.quirk.id]), quirks=(item.contributor(reason),))


def _switch(ids: list[str]) -> str:
    return " ".join(f"--disable {name}" for name in ids) + f" (or quirks.disable: [{', '.join(ids)}])"
