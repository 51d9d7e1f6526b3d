"""What differs between two plans: facts, slots, quirks, patches, refusals and warnings. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

from quirks_core.base.json_values import canonical
from quirks_core.base.record import Record
from quirks_core.plan.records import Plan, PlannedPatch, Status

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


class PlanDiff(Record):
    """What differs between two plans, by kind; each difference has a name, and the values of both plans.

    Not compared, because it has no effect: the path of the model, the file and line of a declaration, and the reason of a state
    that is the same.

    Attributes:
        digests: Both plans' digests. If they are equal, both plans do the same in every process.
        facts: Model, purpose, packages, platform, environment and plugins' facts that differ.
        slots: Settings that differ: ``value`` and ``who`` set it, ``before`` quirks and whether that was ``typed``, and the
            ``ledger`` of what quirks requested.
        quirks: Quirks that differ: ``state`` with its reason in ``because``, ``distribution``, ``version``.
        patches: Patches that differ, by target and quirk.
        refusals: Refusals that one plan has oftener than the other, with their numbers.
        warnings: Warnings, likewise.
    """

    digests: tuple[str, str]
    facts: tuple[Change, ...] = ()
    slots: tuple[Change, ...] = ()
    quirks: tuple[Change, ...] = ()
    patches: tuple[Change, ...] = ()
    refusals: tuple[Change, ...] = ()
    warnings: tuple[Change, ...] = ()

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
    slots = {*_names_of_slots(a), *_names_of_slots(b)}
    return PlanDiff(
        digests=(a.digest, b.digest),
        facts=tuple(changes(_facts(a), _facts(b), ".".join)),
        slots=tuple(changes(_slots(a, slots), _slots(b, slots), str)),
        quirks=tuple(_quirks(a, b)),
        patches=tuple(changes(_patches(a), _patches(b), ".".join)),
        refusals=tuple(changes(_refusals(a), _refusals(b), str)),
        warnings=tuple(changes(_warnings(a), _warnings(b), str)),
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


def _names_of_slots(plan: Plan) -> set[str]:
    return {*plan.context.settings, *plan.context.typed, *(item.slot for item in plan.adjustments)}


def _slots(plan: Plan, names: Iterable[str]) -> dict[str, Any]:
    return {name: _slot(plan, name) for name in names}


def _slot(plan: Plan, slot: str) -> dict[str, Any]:
    context = plan.context
    items = [item for item in plan.adjustments if item.slot == slot]
    who = sorted({quirk.id for item in items if item.status is Status.APPLIED for quirk in item.quirks})
    if not who:
        who = ["the user"] if context.is_typed(slot) else ["the configuration's default"] if slot in context.settings else []
    before = context.value(slot)
    return {
        "value": plan.changes.get(slot, before),
        "who": who,
        "before": before,
        "typed": context.is_typed(slot),
        "ledger": [
            f"{item.strength} {item.relation} {item.value!r} of {', '.join(quirk.id for quirk in item.quirks)}: "
            f"{item.status.replace('_', ' ')}"
            for item in items
        ],
    }


def _quirks(a: Plan, b: Plan) -> Iterator[Change]:
    """The quirks whose state, distribution or version differs, with the reasons of both states."""
    ours, theirs = ({verdict.id: verdict for verdict in plan.verdicts} for plan in (a, b))
    names = {"state", "distribution", "version"}
    left, right = ({one.id: one.model_dump(include=names) for one in known.values()} for known in (ours, theirs))
    for change in changes(left, right, str):
        reasons = {
            side: {**getattr(change, side), "because": known[change.name].because}
            for side, known in (("a", ours), ("b", theirs))
            if change.missing != side
        }
        yield change.model_copy(update=reasons)


def _refusals(plan: Plan) -> Counter[str]:
    """How often a plan has each refusal, as a person reads it, without the places of declarations."""
    return Counter(
        "\n".join(
            [
                f"{' '.join(filter(None, [one.kind, one.slot, one.target]))} ({', '.join(quirk.id for quirk in one.quirks)})",
                one.reason,
                *one.lines,
                f"remedy: {one.remedy}",
                f"override: {one.switch}",
            ]
        )
        for one in plan.refusals
    )


def _warnings(plan: Plan) -> Counter[str]:
    return Counter(note.text for note in plan.warnings)
