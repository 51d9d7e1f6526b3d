"""What differs between two plans: facts, slots, quirks, patches, refusals and warnings. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar

from quirks_core.base.json_values import canonical
from quirks_core.base.record import Record
from quirks_core.plan.records import Note, Plan, PlannedPatch, Refusal, State, Status

T = TypeVar("T")
K = TypeVar("K", str, tuple[str, ...])
_NO = object()  # marks a missing value; None is JSON's null, which is a value


class Change(Record):
    """A value that differs.

    Attributes:
        name: Dotted name of a fact, a patch's target and quirk, or a setting.
        a: The first plan's value; None if it has none.
        b: The second plan's value; None if it has none.
        missing: The side that does not have the value, as opposed to the value null.
    """

    name: str
    a: Any = None
    b: Any = None
    missing: Literal["a", "b"] | None = None


class SlotSide(Record):
    """One plan's side of a slot.

    Attributes:
        before: The value before quirks; None if the slot was not set.
        typed: The user typed that value.
        value: The final value of the slot.
        who: What set the final value: quirk ids, ``the user``, ``the configuration's default``; empty if nothing did.
        ledger: What quirks requested, and the status of each request.
    """

    before: Any = None
    typed: bool = False
    value: Any = None
    who: tuple[str, ...] = ()
    ledger: tuple[str, ...] = ()


class SlotChange(Record):
    """A slot that differs: in its value, in what set the value, or in what quirks requested."""

    slot: str
    a: SlotSide
    b: SlotSide


class QuirkSide(Record):
    """A quirk in one plan."""

    state: State
    distribution: str
    version: str
    because: str


class QuirkChange(Record):
    """A quirk whose state, distribution or version differs; None for a plan without it."""

    id: str
    a: QuirkSide | None
    b: QuirkSide | None


class OneSided(Record, Generic[T]):
    """Items that only the first or only the second plan has."""

    a: tuple[T, ...] = ()
    b: tuple[T, ...] = ()


class PlanDiff(Record):
    """What differs between two plans.

    Not compared, because it has no effect: the path of the model, the file and line of a declaration, and the reason of a state
    that is the same.

    Attributes:
        digests: Both plans' digests. If they are equal, both plans do the same in every process.
        facts: Model, purpose, packages, platform, environment and plugins' facts that differ.
        slots: Settings that differ, before or after quirks.
        quirks: Quirks that differ.
        patches: Patches that differ.
        refusals: Refusals of one plan only.
        warnings: Warnings of one plan only.
    """

    digests: tuple[str, str]
    facts: tuple[Change, ...] = ()
    slots: tuple[SlotChange, ...] = ()
    quirks: tuple[QuirkChange, ...] = ()
    patches: tuple[Change, ...] = ()
    refusals: OneSided[Refusal] = OneSided[Refusal]()
    warnings: OneSided[Note] = OneSided[Note]()

    @property
    def same(self) -> bool:
        """Nothing differs."""
        return self == PlanDiff(digests=(self.digests[0], self.digests[0]))


def diff(a: Plan, b: Plan) -> PlanDiff:
    """Compares two plans.

    Args:
        a: The first plan.
        b: The second plan.

    Returns:
        Everything that differs. ``diff(b, a)`` is the same with the sides exchanged.
    """
    return PlanDiff(
        digests=(a.digest, b.digest),
        facts=tuple(changes(_facts(a), _facts(b), ".".join)),
        slots=tuple(_slots(a, b)),
        quirks=tuple(_quirks(a, b)),
        patches=tuple(changes(_patches(a), _patches(b), ".".join)),
        refusals=_one_sided(a.refusals, b.refusals, _refusal_key),
        warnings=_one_sided(a.warnings, b.warnings, lambda note: note),
    )


def _facts(plan: Plan) -> dict[tuple[str, ...], Any]:
    """The facts by path; settings are compared as slots."""
    facts = plan.context.model_dump(mode="json", exclude={"model": {"path"}, "settings": True, "sources": True, "typed": True})
    return dict(_leaves(facts))


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and value:
        for key in value:
            yield from _leaves(value[key], (*path, key))
    elif value != {} or len(path) > 1:  # an empty family of facts is no fact; an empty value is one
        yield path, value


def _patches(plan: Plan) -> dict[tuple[str, ...], Any]:
    return {(patch.target, patch.quirk.id): _patch(patch) for patch in plan.patches}


def _patch(patch: PlannedPatch) -> dict[str, Any]:
    body: dict[str, Any] = patch.model_dump(mode="json", exclude={"target": True, "quirk": {"id", "location"}})
    quirk: dict[str, Any] = body.pop("quirk")
    return body | quirk


def changes(a: Mapping[K, Any], b: Mapping[K, Any], name: Callable[[K], str]) -> Iterator[Change]:
    """Yields the keys whose values differ, or that only one mapping has, in order.

    Args:
        a: The first mapping, of JSON values.
        b: The second one.
        name: Returns the name of a key.
    """
    for key in sorted(a.keys() | b.keys()):
        sides = a.get(key, _NO), b.get(key, _NO)
        # As JSON: True, 1 and 1.0 are equal in Python, but not in a plan; and NaN equals NaN.
        if _NO in sides or canonical(sides[0]) != canonical(sides[1]):
            missing: Literal["a", "b"] | None = "a" if sides[0] is _NO else "b" if sides[1] is _NO else None
            yield Change(
                name=name(key), missing=missing, **{side: v for side, v in zip("ab", sides, strict=True) if v is not _NO}
            )


def _slots(a: Plan, b: Plan) -> Iterator[SlotChange]:
    named: set[str] = set()
    for plan in (a, b):
        named.update(plan.context.settings, plan.context.typed, (item.slot for item in plan.adjustments))
    for slot in sorted(named):
        sides = _slot(a, slot), _slot(b, slot)
        if canonical(sides[0].model_dump(mode="json")) != canonical(sides[1].model_dump(mode="json")):
            yield SlotChange(slot=slot, a=sides[0], b=sides[1])


def _slot(plan: Plan, slot: str) -> SlotSide:
    context = plan.context
    items = [item for item in plan.adjustments if item.slot == slot]
    who = sorted({quirk.id for item in items if item.status is Status.APPLIED for quirk in item.quirks})
    if not who:
        who = ["the user"] if context.is_typed(slot) else ["the configuration's default"] if slot in context.settings else []
    before = context.value(slot)
    return SlotSide(
        before=before,
        typed=context.is_typed(slot),
        value=plan.changes.get(slot, before),
        who=tuple(who),
        ledger=tuple(
            f"{item.strength} {item.relation} {item.value!r} of {', '.join(quirk.id for quirk in item.quirks)}: "
            f"{item.status.replace('_', ' ')}"
            for item in items
        ),
    )


def _quirks(a: Plan, b: Plan) -> Iterator[QuirkChange]:
    ours, theirs = _verdicts(a), _verdicts(b)
    for name in sorted(ours.keys() | theirs.keys()):
        sides = ours.get(name), theirs.get(name)
        known = [side.model_copy(update={"because": ""}) if side else None for side in sides]
        if known[0] != known[1]:
            yield QuirkChange(id=name, a=sides[0], b=sides[1])


def _verdicts(plan: Plan) -> dict[str, QuirkSide]:
    return {
        verdict.id: QuirkSide(
            state=verdict.state, distribution=verdict.distribution, version=verdict.version, because=verdict.because
        )
        for verdict in plan.verdicts
    }


def _refusal_key(refusal: Refusal) -> Hashable:
    ids = tuple(quirk.id for quirk in refusal.quirks)
    return refusal.kind, refusal.slot, refusal.target, refusal.reason, refusal.lines, ids


def _one_sided(a: Iterable[T], b: Iterable[T], key: Callable[[T], Hashable]) -> OneSided[T]:
    ours, theirs = tuple(a), tuple(b)
    return OneSided(a=tuple(_surplus(ours, theirs, key)), b=tuple(_surplus(theirs, ours, key)))


def _surplus(items: Iterable[T], others: Iterable[T], key: Callable[[T], Hashable]) -> Iterator[T]:
    """The items that the other list lacks, or has fewer times."""
    seen = Counter(map(key, others))
    for item in items:
        seen[key(item)] -= 1
        if seen[key(item)] < 0:
            yield item
