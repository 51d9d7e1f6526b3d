"""Settles every slot: merges the wishes and holds the outcome against what the user typed."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quirks_core.context import RunContext
from quirks_core.merge import Ledger, Wish, in_order, ledgers, overlapping
from quirks_core.plan import PlannedAdjustment, Refusal, Status, Strength
from quirks_core.slots import SLOTS, SlotKind


@dataclass(slots=True)
class Settled:
    """What became of all wishes.

    Attributes:
        changes: The slots that quirks change, with their final values.
        adjustments: The ledger's lines.
        refusals: Conflicts, and requirements that the user's explicit values contradict.
    """

    changes: dict[str, Any] = field(default_factory=dict)
    adjustments: tuple[PlannedAdjustment, ...] = ()
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class _Now:
    """What a slot, or a key of a mapping, holds before quirks: the value, whether there is one, whether the user typed it."""

    value: Any
    is_there: bool
    is_typed: bool

    @classmethod
    def of(cls, context: RunContext, ledger: Ledger) -> _Now:
        value = context.settings.get(ledger.slot)
        is_there = value is not None
        for key in ledger.place[1:]:
            if not isinstance(value, dict):
                break  # what stands there stands where a quirk wants keys
            is_there, value = key in value, value.get(key)
        return cls(value, is_there, is_there and ledger.slot in context.typed)


def settle(context: RunContext, wishes: frozenset[Wish]) -> Settled:
    """Settles every slot that somebody wants something of."""
    everything = ledgers(wishes)
    clashing = {ledger.place for pair in overlapping(everything) for ledger in pair}
    refusals = [_overlap(outer, inner) for outer, inner in overlapping(everything)]
    lines: list[PlannedAdjustment] = []
    settled = Settled()
    for ledger in everything:
        if ledger.is_conflict:
            refusals.append(_conflict(ledger))
        for group in _groups(ledger):
            if ledger.is_conflict or ledger.place in clashing:
                status, reason = Status.CONFLICT, "equally strong adjustments disagree"
                if ledger.is_conflict and not set(group) & set(ledger.strongest):
                    status, reason = Status.OUTRANKED, "a requirement on the same slot wins"
            else:
                status, reason, refusal = _outcome(ledger, group, _Now.of(context, ledger))
                refusals += [refusal] if refusal else []
            lines.append(_line(ledger, group, status, reason))
            if status is Status.APPLIED:
                _change(settled.changes, context, ledger.place, group[0].value)
    settled.adjustments, settled.refusals = tuple(lines), tuple(refusals)
    return settled


def off_switch(ids: Iterable[str]) -> str:
    """Says how to switch quirks off."""
    names = list(ids)
    return " ".join(f"--disable {name}" for name in names) + f" (or quirks.disable: [{', '.join(names)}])"


def _groups(ledger: Ledger) -> list[tuple[Wish, ...]]:
    """Wishes of one value and strength, credited together."""
    groups: dict[tuple[bool, str], list[Wish]] = {}
    for wish in in_order(ledger.wishes):
        groups.setdefault((wish.required, wish.key), []).append(wish)
    return [tuple(group) for _, group in sorted(groups.items())]


def _outcome(ledger: Ledger, group: Sequence[Wish], now: _Now) -> tuple[Status, str, Refusal | None]:
    """What becomes of one group of wishes for a slot without conflict."""
    wish = group[0]
    if wish not in ledger.strongest:
        return Status.OUTRANKED, "a requirement on the same slot wins", None
    if ledger.kind in (SlotKind.AT_MOST, SlotKind.AT_LEAST) and wish.value != ledger.value:
        return Status.OUTRANKED, f"the stricter bound {ledger.value!r} wins", None
    agrees = now.is_there and _satisfies(ledger.kind, now.value, wish.value)
    if not now.is_typed:
        if agrees:
            return Status.ALREADY_SET, f"the configuration's default is {now.value!r} already", None
        return Status.APPLIED, f"changed from the configuration's default {now.value!r}", None
    if agrees:
        same = now.value == wish.value
        return Status.ALREADY_SET, "the user typed the same value" if same else f"the user typed {now.value!r}", None
    if not wish.required:
        return Status.KEPT_USER, f"the user typed {now.value!r}, which wins over a default", None
    if ledger.kind is SlotKind.SET:
        return Status.APPLIED, f"added to what the user typed, {now.value!r}", None
    # Every requirement must be content, not only the first.
    if all(item.instead_of and now.value not in item.instead_of for item in group):
        return Status.KEPT_USER, f"the user typed {now.value!r}, which serves as well", None
    reason = f"the user typed {now.value!r}, which contradicts a requirement"
    return Status.REFUSED, reason, _contradiction(ledger, group, now)


def _satisfies(kind: SlotKind, value: Any, wanted: Any) -> bool:
    match kind:
        case SlotKind.AT_MOST:
            return bool(value <= wanted)
        case SlotKind.AT_LEAST:
            return bool(value >= wanted)
        case SlotKind.SET:
            return set(wanted) <= set(value)
    return bool(value == wanted)


def _change(changes: dict[str, Any], context: RunContext, place: tuple[str, ...], value: Any) -> None:
    """Notes a slot's new value; members are added to a set, a key of a mapping is set in it."""
    slot, *keys = place
    if SLOTS[slot].kind is SlotKind.SET:
        changes[slot] = sorted({*(changes.get(slot) or context.settings.get(slot) or ()), *value})
    elif not keys:
        changes[slot] = value
    else:
        if slot not in changes:
            changes[slot] = copy.deepcopy(context.settings.get(slot)) or {}
        here = changes[slot]
        for key in keys[:-1]:
            if not isinstance(here.get(key), dict):
                here[key] = {}
            here = here[key]
        here[keys[-1]] = value


def _line(ledger: Ledger, group: Sequence[Wish], status: Status, reason: str) -> PlannedAdjustment:
    return PlannedAdjustment(
        slot=ledger.name,
        value=group[0].value,
        strength=Strength.REQUIRE if group[0].required else Strength.DEFAULT,
        flag=group[0].flag,
        status=status,
        reason=reason,
        quirks=tuple(wish.contributor for wish in group),
    )


def _contradiction(ledger: Ledger, group: Sequence[Wish], now: _Now) -> Refusal:
    wish = group[0]
    words = {SlotKind.AT_MOST: "at most ", SlotKind.AT_LEAST: "at least "}.get(ledger.kind, "")
    return Refusal(
        kind="require",
        slot=ledger.name,
        reason=f"{ledger.name} must be {words}{wish.value!r}, but {now.value!r} was set explicitly: {wish.contributor.reason}",
        remedy=wish.remedy or f"remove {ledger.name} from the configuration, or set it to {words}{wish.value!r}",
        switch=off_switch(item.quirk for item in group),
        quirks=tuple(item.contributor for item in group),
    )


def _conflict(ledger: Ledger) -> Refusal:
    return _disagreement(ledger, ledger.strongest, f"{ledger.name} is wanted with different values")


def _overlap(outer: Ledger, inner: Ledger) -> Refusal:
    reason = f"{outer.name} is wanted as a value, and keys below it are wanted too"
    return _disagreement(inner, (*outer.strongest, *inner.strongest), reason)


def _disagreement(ledger: Ledger, wishes: Sequence[Wish], reason: str) -> Refusal:
    wanted = "; ".join(f"{wish.contributor} wants {'.'.join(wish.place)} = {wish.value!r}" for wish in wishes)
    sides: dict[tuple[tuple[str, ...], str], set[str]] = {}
    for wish in wishes:
        sides.setdefault((wish.place, wish.key), set()).add(wish.quirk)
    everybody = set().union(*sides.values())
    # To settle it, all who want another value than the one that stays must go.
    losers = {tuple(sorted(everybody - side)) or tuple(sorted(side)) for side in sides.values()}
    return Refusal(
        kind="conflict",
        slot=ledger.name,
        reason=f"{reason}: {wanted}",
        remedy="decide which of them you need and switch the other off",
        switch=" or ".join(off_switch(ids) for ids in sorted(losers)),
        quirks=tuple(wish.contributor for wish in wishes),
    )
