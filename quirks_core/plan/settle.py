"""Settles every slot: holds what was proposed for it against what the user typed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quirks_core.declaration.adjustments import Relation, is_among, same
from quirks_core.facts.context import RunContext
from quirks_core.plan.merge import Proposal, Proposals, in_order, overlapping
from quirks_core.plan.records import PlannedAdjustment, Refusal, Status, Strength


@dataclass(frozen=True, slots=True)
class _Now:
    """What a slot, or a key of a mapping, holds before quirks: the value, whether there is one, whether the user typed it."""

    value: Any
    is_there: bool
    is_typed: bool
    is_in_the_way: bool = False  # it stands where a quirk wants keys

    @classmethod
    def of(cls, context: RunContext, asked: Proposals) -> _Now:
        value = context.value(asked.slot)
        is_there, is_in_the_way = value is not None, False
        for key in asked.place[1:]:
            if not isinstance(value, dict):
                is_in_the_way = is_there
                break
            is_there, value = key in value, value.get(key)
        return cls(value, is_there, is_there and context.is_typed(asked.slot), is_in_the_way)

    def satisfies(self, item: Proposal) -> bool:
        """Returns whether what is there is as a quirk requests."""
        return self.is_there and not self.is_in_the_way and item.allows(self.value)


def settle(
    context: RunContext, by_place: tuple[Proposals, ...]
) -> tuple[dict[str, Any], list[PlannedAdjustment], list[Refusal]]:
    """Returns the final values of the slots that quirks change, what became of every proposal, and what cannot be settled."""
    clashing = {asked.place for pair in overlapping(by_place) for asked in pair}
    changes: dict[str, Any] = {}
    refusals = []
    for outer, inner in overlapping(by_place):
        reason = f"{outer.name} is wanted as a value, and keys below it are wanted too"
        refusals.append(_disagreement(inner, (*outer.strongest, *inner.strongest), reason))
    lines: list[PlannedAdjustment] = []
    for asked in by_place:
        now = _Now.of(context, asked)
        if asked.is_conflict:
            refusals.append(_disagreement(asked, asked.strongest, f"{asked.name} is wanted with different values"))
        for group in _groups(asked):
            if asked.is_conflict or asked.place in clashing:
                status, reason = Status.CONFLICT, "equally strong adjustments disagree"
                if asked.is_conflict and not set(group) & set(asked.strongest):
                    status, reason = Status.OUTRANKED, "a requirement on the same slot wins"
            else:
                status, reason, refusal = _outcome(asked, group, now)
                refusals += [refusal] if refusal else []
            lines.append(_line(asked, group, status, reason))
            if status is Status.APPLIED:
                _change(changes, context, asked, group[0], now)
    return changes, lines, refusals


def _groups(asked: Proposals) -> list[tuple[Proposal, ...]]:
    """Proposals of one value and strength, credited together."""
    groups: dict[tuple[bool, str], list[Proposal]] = {}
    for item in in_order(asked.proposals):
        groups.setdefault((item.required, item.key), []).append(item)
    return [tuple(group) for _, group in sorted(groups.items())]


def _outcome(asked: Proposals, group: Sequence[Proposal], now: _Now) -> tuple[Status, str, Refusal | None]:
    """What becomes of one group of proposals for a slot without conflict."""
    item = group[0]
    if item not in asked.strongest:
        return Status.OUTRANKED, "a requirement on the same slot wins", None
    final = asked.value(now.value if now.is_there else None)
    if not now.is_typed:
        if all(map(now.satisfies, asked.strongest)):
            return Status.ALREADY_SET, f"the configuration's default is {now.value!r} already", None
        # Beside a stricter one, a proposal merely allows the value that its slot gets.
        names_it = is_among(final, item.operand) if item.relation is Relation.ONE_OF else same(final, item.operand)
        if item.relation is not Relation.INCLUDES and not names_it:
            return Status.OUTRANKED, f"the stricter {final!r} wins", None
        was_open = "the configuration left it open"
        return (
            Status.APPLIED,
            was_open if now.value is None else f"changed from the configuration's default {now.value!r}",
            None,
        )
    if now.satisfies(item):
        is_equal = same(now.value, item.operand)
        return Status.ALREADY_SET, "the user typed the same value" if is_equal else f"the user typed {now.value!r}", None
    if not item.required:
        return Status.KEPT_USER, f"the user typed {now.value!r}, which wins over a default", None
    if item.relation is Relation.INCLUDES and isinstance(now.value, list):
        return Status.APPLIED, f"added to what the user typed, {now.value!r}", None
    # Every requirement must be content, not only the first.
    if all(one.instead_of and not is_among(now.value, one.instead_of) for one in group):
        return Status.KEPT_USER, f"the user typed {now.value!r}, which serves as well", None
    return Status.REFUSED, f"the user typed {now.value!r}", _contradiction(asked, group, now)


def _change(changes: dict[str, Any], context: RunContext, asked: Proposals, item: Proposal, now: _Now) -> None:
    """Notes a slot's new value; members are added to a list, a key of a mapping is set in it."""
    slot, *keys = asked.place
    if item.relation is Relation.INCLUDES:
        before = changes.get(slot, now.value)
        before = before if isinstance(before, list) else []
        changes[slot] = [*before, *(member for member in item.operand if not is_among(member, before))]
        return
    value = asked.value(now.value if now.is_there else None)
    if not keys:
        changes[slot] = value
        return
    if slot not in changes:
        before = context.value(slot)
        changes[slot] = copy.deepcopy(before) if isinstance(before, dict) else {}
    here = changes[slot]
    for key in keys[:-1]:
        if not isinstance(here.get(key), dict):
            here[key] = {}
        here = here[key]
    here[keys[-1]] = value


def _line(asked: Proposals, group: Sequence[Proposal], status: Status, reason: str) -> PlannedAdjustment:
    return PlannedAdjustment(
        slot=asked.name,
        relation=group[0].relation,
        value=group[0].operand,
        strength=Strength.REQUIRE if group[0].required else Strength.DEFAULT,
        flag=group[0].flag,
        status=status,
        reason=reason,
        quirks=tuple(item.contributor for item in group),
    )


_WORDS = {
    Relation.EQUALS: "",
    Relation.AT_MOST: "at most ",
    Relation.AT_LEAST: "at least ",
    Relation.ONE_OF: "one of ",
    Relation.INCLUDES: "a list with ",
}


def _wanted(item: Proposal) -> str:
    operand = item.operand
    shown = ", ".join(map(repr, operand)) if item.relation in (Relation.ONE_OF, Relation.INCLUDES) else repr(operand)
    return f"{_WORDS[item.relation]}{shown}"


def _contradiction(asked: Proposals, group: Sequence[Proposal], now: _Now) -> Refusal:
    item = group[0]
    wanted = _wanted(item)
    return Refusal.of(
        "require",
        f"{asked.name} must be {wanted}, but {now.value!r} was set explicitly: {item.contributor.reason}",
        item.remedy or f"leave {asked.name} out, or set it to {wanted}",
        off=[tuple(one.quirk for one in group)],
        slot=asked.name,
        quirks=tuple(one.contributor for one in group),
    )


def _disagreement(asked: Proposals, proposals: Sequence[Proposal], reason: str) -> Refusal:
    wanted = "; ".join(f"{item.quirk} wants {'.'.join(item.place)} {item.relation} {item.operand!r}" for item in proposals)
    sides: dict[tuple[tuple[str, ...], str], set[str]] = {}
    for item in proposals:
        sides.setdefault((item.place, item.key), set()).add(item.quirk)
    names = set().union(*sides.values())
    # To settle it, all who want another value than the one that stays must go.
    losers = sorted({tuple(sorted(names - side)) or tuple(sorted(side)) for side in sides.values()})
    return Refusal.of(
        "conflict",
        f"{reason}: {wanted}",
        "decide which of them you need and switch the other off",
        off=losers,
        slot=asked.name,
        quirks=tuple(item.contributor for item in proposals),
    )
