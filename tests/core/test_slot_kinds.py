"""What becomes of quirks' wishes on each kind of slot, beside what the user typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from quirks_core import DeclarationError, Default, Plan, Quirk, Require, RunContext
from quirks_core.plan import Status

MEMORY, SEQUENCES, TIMEOUT = "engine.gpu_memory_utilization", "engine.max_num_seqs", "request.timeout_s"
STOPS, OVERRIDES = "sampling.stop_token_ids", "engine.hf_overrides"
APPLIED, SAME, KEPT, REFUSED, OUTRANKED = (
    Status.APPLIED,
    Status.ALREADY_SET,
    Status.KEPT_USER,
    Status.REFUSED,
    Status.OUTRANKED,
)
BOTH = [APPLIED, APPLIED]


@pytest.fixture
def plan_of(
    make_context: Callable[..., RunContext], make_quirk: Callable[..., Quirk], make_plan: Callable[..., Plan]
) -> Callable[..., Plan]:
    """Resolves one quirk per adjustment, beside values that the user typed or the configuration brings."""

    def make(*adjustments: Any, typed: dict[str, Any] | None = None, untyped: dict[str, Any] | None = None) -> Plan:
        context = make_context(settings={**(untyped or {}), **(typed or {})}, typed=frozenset(typed or {}))
        return make_plan(*(make_quirk(id=f"q{n}", adjustments=item) for n, item in enumerate(adjustments)), context=context)

    return make


def outcome(plan: Plan, slot: str) -> tuple[Any, list[str]]:
    """The slot's value, and what became of each quirk's wish, in order of the quirks."""
    lines = {quirk.id: item.status for item in plan.adjustments for quirk in item.quirks}
    return plan.value(slot), [lines[name] for name in sorted(lines)]


class Bound(NamedTuple):
    """A slot with a bound, two bounds for it, and a user's value on either side of the stricter one."""

    slot: str
    words: str
    strict: float
    lax: float
    within: float
    beyond: float


BOUNDS = (
    Bound(MEMORY, "at most", strict=0.5, lax=0.8, within=0.4, beyond=0.9),
    Bound(SEQUENCES, "at most", strict=8, lax=16, within=4, beyond=32),
    Bound(TIMEOUT, "at least", strict=600.0, lax=60.0, within=900.0, beyond=30.0),
)
every_bound = pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.slot)


@every_bound
def test_the_stricter_bound_wins(plan_of: Callable[..., Plan], bound: Bound) -> None:
    plan = plan_of(Default(bound.slot, bound.lax), Default(bound.slot, bound.strict))

    assert outcome(plan, bound.slot) == (bound.strict, [OUTRANKED, APPLIED])
    assert f"the stricter bound {bound.strict!r} wins" in [item.reason for item in plan.adjustments]


@every_bound
@pytest.mark.parametrize("kind", [Default, Require])
def test_a_users_value_within_the_bound_is_kept(plan_of: Callable[..., Plan], bound: Bound, kind: Callable[..., Any]) -> None:
    plan = plan_of(kind(bound.slot, bound.strict), typed={bound.slot: bound.within})

    assert (outcome(plan, bound.slot), plan.refusals) == ((bound.within, [SAME]), ())


@every_bound
@pytest.mark.parametrize("kind", [Default, Require])
def test_the_bound_itself_is_within(plan_of: Callable[..., Plan], bound: Bound, kind: Callable[..., Any]) -> None:
    plan = plan_of(kind(bound.slot, bound.strict), typed={bound.slot: bound.strict})

    assert outcome(plan, bound.slot) == (bound.strict, [SAME])


@every_bound
def test_a_users_value_beyond_a_default_is_kept(plan_of: Callable[..., Plan], bound: Bound) -> None:
    plan = plan_of(Default(bound.slot, bound.strict), typed={bound.slot: bound.beyond})

    assert (outcome(plan, bound.slot), plan.refusals) == ((bound.beyond, [KEPT]), ())


@every_bound
def test_a_users_value_beyond_a_requirement_is_refused_and_the_message_says_which_way(
    plan_of: Callable[..., Plan], bound: Bound
) -> None:
    plan = plan_of(Require(bound.slot, bound.strict), typed={bound.slot: bound.beyond})

    (refusal,) = plan.refusals
    wanted = f"{bound.words} {bound.strict!r}"
    assert outcome(plan, bound.slot) == (bound.beyond, [REFUSED])
    assert refusal.reason.startswith(f"{bound.slot} must be {wanted}, but {bound.beyond!r} was set explicitly")
    assert refusal.remedy == f"remove {bound.slot} from the configuration, or set it to {wanted}"


@every_bound
def test_of_two_requirements_only_the_stricter_is_named(plan_of: Callable[..., Plan], bound: Bound) -> None:
    plan = plan_of(Require(bound.slot, bound.lax), Require(bound.slot, bound.strict), typed={bound.slot: bound.beyond})

    assert [quirk.id for refusal in plan.refusals for quirk in refusal.quirks] == ["q1"]


@every_bound
def test_a_default_of_the_configuration_within_the_bound_stays(plan_of: Callable[..., Plan], bound: Bound) -> None:
    assert plan_of(Require(bound.slot, bound.strict), untyped={bound.slot: bound.within}).changes == {}


@every_bound
def test_a_default_of_the_configuration_beyond_the_bound_is_brought_to_it(plan_of: Callable[..., Plan], bound: Bound) -> None:
    plan = plan_of(Default(bound.slot, bound.strict), untyped={bound.slot: bound.beyond})

    assert plan.changes == {bound.slot: bound.strict}


@every_bound
def test_equal_bounds_are_credited_to_all(plan_of: Callable[..., Plan], bound: Bound) -> None:
    plan = plan_of(Default(bound.slot, bound.strict), Default(bound.slot, bound.strict))

    assert [[quirk.id for quirk in item.quirks] for item in plan.adjustments] == [["q0", "q1"]]


@pytest.mark.parametrize(
    ("adjustments", "typed", "value", "statuses"),
    [
        ([Default(STOPS, [2, 1])], None, [1, 2], [APPLIED]),
        ([Default(STOPS, [1]), Require(STOPS, [2])], None, [1, 2], [APPLIED, APPLIED]),
        ([Require(STOPS, [1])], [7], [1, 7], [APPLIED]),
        ([Require(STOPS, [1])], [1, 7], [1, 7], [SAME]),
        ([Default(STOPS, [1])], [7], [7], [KEPT]),
        ([Default(STOPS, [1]), Require(STOPS, [2])], [7], [2, 7], [KEPT, APPLIED]),
        ([Require(STOPS, [1, 7]), Require(STOPS, [1])], [7], [1, 7], [APPLIED, APPLIED]),
    ],
)
def test_a_sets_members_come_together(
    plan_of: Callable[..., Plan], adjustments: list[Any], typed: list[int] | None, value: list[int], statuses: list[str]
) -> None:
    plan = plan_of(*adjustments, typed={STOPS: typed} if typed else None)

    assert outcome(plan, STOPS) == (value, statuses)
    assert plan.refusals == ()


def test_a_set_of_the_configuration_keeps_its_members(plan_of: Callable[..., Plan]) -> None:
    assert plan_of(Default(STOPS, [1]), untyped={STOPS: [9]}).changes == {STOPS: [1, 9]}


@pytest.mark.parametrize(
    ("adjustments", "typed", "value", "statuses"),
    [
        ([Default(OVERRIDES, {"a": 1}), Default(OVERRIDES, {"b": 2})], None, {"a": 1, "b": 2}, [APPLIED, APPLIED]),
        ([Default(OVERRIDES, {"a": {"b": 1}}), Require(OVERRIDES, {"a": {"c": 2}})], {}, {"a": {"b": 1, "c": 2}}, BOTH),
        ([Default(OVERRIDES, {"a": 1})], {"z": 0}, {"a": 1, "z": 0}, [APPLIED]),
        ([Default(OVERRIDES, {"a": {"b": 1}})], {"a": {"z": 0}}, {"a": {"b": 1, "z": 0}}, [APPLIED]),
        ([Default(OVERRIDES, {"a": 1})], {"a": 2}, {"a": 2}, [KEPT]),
        ([Default(OVERRIDES, {"a": 1})], {"a": None}, {"a": None}, [KEPT]),
        ([Default(OVERRIDES, {"a": {"b": 1}})], {"a": None}, {"a": None}, [KEPT]),
        ([Default(OVERRIDES, {"a": {"b": 1}})], {"a": 7}, {"a": 7}, [KEPT]),
        ([Default(OVERRIDES, {"a": 1})], {"a": {"b": 1}}, {"a": {"b": 1}}, [KEPT]),
        ([Require(OVERRIDES, {"a": 1})], {"a": 1}, {"a": 1}, [SAME]),
        ([Require(OVERRIDES, {"a.b": 1})], None, {"a.b": 1}, [APPLIED]),
        ([Require(OVERRIDES, {"a": None})], None, {"a": None}, [APPLIED]),
        ([Require(OVERRIDES, {"a": [2, 1]})], None, {"a": [2, 1]}, [APPLIED]),
    ],
)  # fmt: skip
def test_each_key_of_a_mapping_is_a_scalar_of_its_own(
    plan_of: Callable[..., Plan], adjustments: list[Any], typed: Any, value: Any, statuses: list[str]
) -> None:
    plan = plan_of(*adjustments, typed=None if typed is None else {OVERRIDES: typed})

    assert outcome(plan, OVERRIDES) == (value, statuses)
    assert plan.refusals == ()


@pytest.mark.parametrize("typed", [{"a": {"b": 2}}, {"a": {"b": None}}, {"a": None}, {"a": 7}])
def test_a_contrary_key_of_the_user_against_a_requirement_is_refused_by_its_full_name(
    plan_of: Callable[..., Plan], typed: dict[str, Any]
) -> None:
    plan = plan_of(Require(OVERRIDES, {"a": {"b": 1}}), typed={OVERRIDES: typed})

    (refusal,) = plan.refusals
    assert (refusal.slot, plan.changes) == (f"{OVERRIDES}.a.b", {})
    assert refusal.reason.startswith(f"{OVERRIDES}.a.b must be 1, but ")
    assert refusal.switch == "--disable q0 (or quirks.disable: [q0])"


def test_a_scalar_that_the_configuration_brings_gives_way_to_keys(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of(Require(OVERRIDES, {"a": {"b": 1}}), untyped={OVERRIDES: {"a": 7}})

    assert plan.changes == {OVERRIDES: {"a": {"b": 1}}}


def test_what_the_user_typed_is_never_changed_in_place(plan_of: Callable[..., Plan]) -> None:
    typed = {"a": {"z": 0}}

    plan_of(Default(OVERRIDES, {"a": {"b": 1}}), typed={OVERRIDES: typed})

    assert typed == {"a": {"z": 0}}


def test_what_a_declaration_holds_is_never_changed_in_place(plan_of: Callable[..., Plan]) -> None:
    declared = {"a": {"b": 1}}
    plan = plan_of(Default(OVERRIDES, declared))

    plan.changes[OVERRIDES]["a"]["c"] = 2

    assert declared == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("slot", "value"),
    [
        (MEMORY, "0.5"),
        (TIMEOUT, float("nan")),
        (TIMEOUT, float("inf")),
        (STOPS, 5),
        (STOPS, ["a"]),
        (STOPS, (1, "a")),
        (STOPS, "12"),
        (OVERRIDES, 5),
        (OVERRIDES, {1: 2}),
        (OVERRIDES, {"a": {1, 2}}),
        (OVERRIDES, {"a": object()}),
        (OVERRIDES, {"a": float("nan")}),
        (OVERRIDES, {"a": {2: 3}}),
    ],
)
@pytest.mark.parametrize("computed", [False, True])
def test_a_value_of_the_wrong_kind_is_an_error_of_its_quirk(
    plan_of: Callable[..., Plan], slot: str, value: Any, computed: bool
) -> None:
    if not computed:
        with pytest.raises(DeclarationError, match=slot):
            Default(slot, value)
        return

    plan = plan_of(Default(slot, lambda _: value))

    assert [(refusal.kind, refusal.quirks[0].id) for refusal in plan.refusals] == [("broken", "q0")]
    plan.to_json()
