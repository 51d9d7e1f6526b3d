"""What differs between two plans, as paths and two values: facts, slots and quirks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from quirks_core.base.json_values import canonical
from quirks_core.base.record import Record
from quirks_core.plan.records import Plan, Status

_NO = object()  # marks a missing value; None is JSON's null, which is a value


class Change(Record):
    """A value that differs.

    Attributes:
        name: Dotted name of a fact or a setting, or a quirk's id.
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
        facts: Model, purpose, packages, platform, environment and plugins' facts that differ.
        slots: Settings that differ: their ``value``, ``who`` set it, what was ``before``, and whether it was ``typed``.
        quirks: Quirks that differ: ``state`` with its reason in ``because``, ``distribution``, ``version``.
    """

    facts: tuple[Change, ...] = ()
    slots: tuple[Change, ...] = ()
    quirks: tuple[Change, ...] = ()


def diff(a: Plan, b: Plan) -> PlanDiff:
    """Compares two plans.

    Returns:
        What differs. ``diff(b, a)`` is the same with the sides exchanged.
    """
    plans = a, b
    slots = {name for plan in plans for name in (*plan.context.settings, *plan.context.typed)}
    slots |= {item.slot for plan in plans for item in plan.adjustments}
    names = ("state", "distribution", "version", "because")
    quirks = [{one.id: {name: getattr(one, name) for name in names} for one in plan.verdicts} for plan in plans]
    return PlanDiff(
        facts=tuple(changes(_facts(a), _facts(b))),
        slots=tuple(changes({name: _slot(a, name) for name in slots}, {name: _slot(b, name) for name in slots})),
        quirks=tuple(one for one in changes(*quirks) if one.missing or one.a | {"because": ""} != one.b | {"because": ""}),
    )


def changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Change]:
    """Yields the keys whose values differ, or that only one mapping has, in order."""
    for name in sorted(a.keys() | b.keys()):
        sides = a.get(name, _NO), b.get(name, _NO)
        # As JSON: True, 1 and 1.0 are equal in Python, but not in a plan; and NaN equals NaN.
        if _NO in sides or canonical(sides[0]) != canonical(sides[1]):
            missing: Literal["a", "b"] | None = "a" if sides[0] is _NO else "b" if sides[1] is _NO else None
            left, right = (None if side is _NO else side for side in sides)
            yield Change(name=name, a=left, b=right, missing=missing)


def _facts(plan: Plan) -> dict[str, Any]:
    """The facts by path; settings are compared as slots."""
    facts = plan.context.model_dump(mode="json", exclude={"model": {"path"}, "settings": True, "sources": True, "typed": True})
    return dict(_leaves(facts))


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key in value:
            yield from _leaves(value[key], (*path, key))
    elif value != {} or len(path) > 1:  # an empty family of facts is no fact; an empty value is one
        yield ".".join(path), value


def _slot(plan: Plan, slot: str) -> dict[str, Any]:
    context, before = plan.context, plan.context.value(slot)
    items = [item for item in plan.adjustments if item.slot == slot]
    who = sorted({quirk.id for item in items if item.status is Status.APPLIED for quirk in item.quirks})
    if not who:
        who = ["the user"] if context.is_typed(slot) else ["the configuration's default"] if slot in context.settings else []
    return {"value": plan.changes.get(slot, before), "who": who, "before": before, "typed": context.is_typed(slot)}
