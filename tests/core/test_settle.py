"""What becomes of quirks' proposals beside each other, what the user typed and what the configuration brings."""

from __future__ import annotations

import re

import pytest

from quirks_core import Default, Require
from quirks_core.declaration.quirk import Location
from quirks_core.plan.records import Status

SLOT, EAGER, TIMEOUT, LENGTH = "engine.load_format", "engine.enforce_eager", "request.timeout_s", "engine.max_model_len"
STOPS, ANY = "sampling.stop_token_ids", "engine.any_argument"
APPLIED, SAME, KEPT, REFUSED = Status.APPLIED, Status.ALREADY_SET, Status.KEPT_USER, Status.REFUSED
OUTRANKED = Status.OUTRANKED
EACH = pytest.mark.parametrize("kind", [Default, Require])
#: A slot of every family with two values.
FAMILIES = pytest.mark.parametrize(
    ("slot", "wanted", "other"),
    [(EAGER, True, False), (ANY, 16, 32), ("env.NCCL_NVLS_ENABLE", "0", "1"), ("refit.scope", "state_dict", "parameters")],
)


def outcome(plan, slot):
    """The slot's value, and what became of each quirk's proposal, in order of the quirks."""
    lines = {quirk.id: item.status for item in plan.adjustments for quirk in item.quirks}
    return plan.value(slot), [lines[name] for name in sorted(lines)]


@EACH
@FAMILIES
def test_what_the_user_left_open_gets_the_value(plan_of, kind, slot, wanted, other):
    """So does what the configuration brings; a value that is set already changes nothing."""
    for untyped in ({}, {} if slot.startswith("env.") else {slot: other}):
        plan = plan_of(kind(slot, wanted), untyped=untyped)

        assert (plan.changes, plan.refusals) == ({slot: wanted}, ())
        assert outcome(plan, slot) == (wanted, [APPLIED])
    for by in ("typed", "untyped"):
        plan = plan_of(kind(slot, wanted), **{by: {slot: wanted}})

        assert (outcome(plan, slot), plan.changes, plan.refusals) == ((wanted, [SAME]), {}, ())


@FAMILIES
def test_the_users_explicit_value_wins_over_a_default(plan_of, messages, slot, wanted, other):
    """Against a requirement it is refused."""
    plan, against = (plan_of(kind(slot, wanted), typed={slot: other}) for kind in (Default, Require))

    assert (outcome(plan, slot), plan.refusals) == ((other, [KEPT]), ())
    messages(plan.adjustments[0].reason)
    (refusal,) = against.refusals
    assert (outcome(against, slot), against.changes) == ((other, [REFUSED]), {})
    assert (refusal.kind, refusal.slot, refusal.off) == ("require", slot, (("q0",),))


@pytest.mark.parametrize(
    ("asked", "typed"),
    [
        ({"value": "a"}, "c"),
        ({"value": "a", "remedy": "convert the checkpoint", "reason": "it would hang"}, "c"),
        ({"value": {"a": {"b": 1}}}, {"a": {"b": 2}}),
        ({"one_of": ["a", "b"]}, "c"),
        ({"at_most": 8}, 9),
        ({"at_least": 8}, 7),
        ({"includes": ["a", "b"]}, "ab"),
    ],
    ids=str,
)
def test_a_refusal_gives_its_reason_with_a_remedy(plan_of, messages, asked, typed):
    (refusal,) = plan_of(Require(ANY, **asked), typed={ANY: typed}).refusals

    messages(refusal.reason, refusal.remedy, refusal.switch)


@EACH
def test_equal_proposals_are_credited_to_all_who_made_them(plan_of, kind):
    plan = plan_of(*(kind(TIMEOUT, value) for value in (600, 600.0, 600)))

    assert [[quirk.id for quirk in item.quirks] for item in plan.adjustments] == [["q0", "q1", "q2"]]


@pytest.mark.parametrize(
    ("adjustments", "typed", "value", "statuses"),
    [
        ([Require(SLOT, "auto"), Default(SLOT, "a"), Default(SLOT, "b")], None, "auto", [APPLIED, OUTRANKED, OUTRANKED]),
        ([Default(SLOT, one_of=["b", "a"])], None, "b", [APPLIED]),
        ([Default(SLOT, one_of=["b", "a"]), Default(SLOT, one_of=["c", "a"])], None, "a", [APPLIED, APPLIED]),
        ([Require(SLOT, one_of=["b", "a"])], "a", "a", [SAME]),
        ([Default(SLOT, one_of=["b", "a"])], "c", "c", [KEPT]),
        ([Require(LENGTH, at_most=8), Require(LENGTH, at_least=2)], None, 8, [APPLIED, OUTRANKED]),
        ([Require(LENGTH, at_most=8), Require(LENGTH, at_least=2)], 4, 4, [SAME, SAME]),
        ([Require(LENGTH, at_most=8), Require(LENGTH, at_least=2)], 16, 16, [REFUSED, SAME]),
        ([Require(LENGTH, at_most=8), Require(LENGTH, one_of=[16, 4])], None, 4, [OUTRANKED, APPLIED]),
        ([Default(LENGTH, at_most=16), Default(LENGTH, at_most=8)], None, 8, [OUTRANKED, APPLIED]),  # the stricter one wins
        *(([kind(LENGTH, at_most=8)], value, value, [SAME]) for kind in (Default, Require) for value in (4, 8)),
        ([Default(LENGTH, at_most=8)], 32, 32, [KEPT]),
        ([Default(ANY, at_most=0.5)], 0, 0, [SAME]),
        ([Require(LENGTH, at_most=8)], 32, 32, [REFUSED]),
        ([Require(ANY, "auto", instead_of="dummy")], "sharded", "sharded", [KEPT]),  # which serves as well
        ([Require(ANY, "auto", instead_of="dummy")], "dummy", "dummy", [REFUSED]),
        ([Require(ANY, "auto", instead_of="dummy"), Require(ANY, "auto")], "sharded", "sharded", [REFUSED, REFUSED]),
        ([Require(ANY, 0, instead_of=[1])], True, True, [KEPT]),  # true is not one
        ([Default(STOPS, includes=[2, 1, 2])], None, [1, 2], [APPLIED]),
        (
            [Require(STOPS, includes=[1]), Require(STOPS, [1]), Default(STOPS, includes=[2])],
            None,
            [1],
            [APPLIED, APPLIED, OUTRANKED],
        ),
        ([Default(STOPS, includes=[1]), Require(STOPS, includes=[2])], None, [1, 2], [APPLIED, APPLIED]),
        ([Default(STOPS, [2]), Require(STOPS, includes=[1])], None, [1], [OUTRANKED, APPLIED]),
        ([Require(STOPS, includes=[1])], [7], [7, 1], [APPLIED]),
        ([Require(STOPS, includes=[1])], [7, 1], [7, 1], [SAME]),
        ([Default(STOPS, includes=[1])], [7], [7], [KEPT]),
        ([Default(STOPS, includes=[1]), Require(STOPS, includes=[2])], [7], [7, 2], [KEPT, APPLIED]),
        ([Require(STOPS, includes=[1, 7]), Require(STOPS, includes=[1])], [7], [7, 1], [APPLIED, APPLIED]),
        ([Default(ANY, {"a": 1}), Default(ANY, {"b": 2})], None, {"a": 1, "b": 2}, [APPLIED, APPLIED]),
        ([Default(ANY, {"a": {"b": 1}}), Require(ANY, {"a": {"c": 2}})], {}, {"a": {"b": 1, "c": 2}}, [APPLIED, APPLIED]),
        ([Default(ANY, {"a": {"b": 1}})], {"a": {"z": 0}}, {"a": {"b": 1, "z": 0}}, [APPLIED]),
        ([Default(ANY, {"a": 1})], {"a": 2}, {"a": 2}, [KEPT]),
        ([Default(ANY, {"a": {"b": 1}})], {"a": 1}, {"a": 1}, [KEPT]),
        ([Require(ANY, {"a": 1})], {"a": 1}, {"a": 1}, [SAME]),
        ([Require(ANY, {"a.b": None, "c": [2, 1]})], None, {"a.b": None, "c": [2, 1]}, [APPLIED]),
    ],
)
def test_relations_meet_on_each_slot_or_key_of_a_mapping(plan_of, adjustments, typed, value, statuses):
    slot = adjustments[0].slot

    plan = plan_of(*adjustments, typed=None if typed is None else {slot: typed})

    assert outcome(plan, slot) == (value, statuses)
    assert bool(plan.refusals) is (REFUSED in statuses)


def test_each_requirement_of_a_quirk_must_be_content(plan_of):
    both = [Require(ANY, "auto", instead_of="dummy"), Require(ANY, "auto")]

    assert [len(plan_of(wanted, typed={ANY: "sharded"}).refusals) for wanted in (both, both[::-1])] == [1, 1]


@pytest.mark.parametrize(
    ("adjustments", "before", "after"),
    [
        ([Default(ANY, includes=[1])], [9], [9, 1]),
        ([Default(ANY, includes=["a"])], "ab", ["a"]),
        ([Default(ANY, [1])], [9], [1]),
        *(([Require(ANY, {"a": {"b": 1}})], before, {"a": {"b": 1}}) for before in ({"a": 1}, {"a": None}, 1, "text")),
        *(([Require(ANY, at_least=2), Default(ANY, at_most=8)], *values) for values in ((1, 2), (4, 4))),
        *(([Default(ANY, at_least=2), Default(ANY, at_most=8)], *values) for values in ((1, 2), (9, 8), (0.5, 2))),
    ],
)
def test_the_configurations_value_gives_way_as_far_as_needed(plan_of, adjustments, before, after):
    """Only added members keep it; of two bounds the nearer one counts."""
    assert plan_of(*adjustments, untyped={ANY: before}).value(ANY) == after


@pytest.mark.parametrize("typed", [{"a": {"b": 2}}, {"a": {"b": None}}, {"a": {"b": True}}, {"a": None}, {"a": 1}, 1, "text"])
def test_a_contrary_key_of_the_user_is_refused_by_its_full_name(plan_of, typed):
    plan = plan_of(Require(ANY, {"a": {"b": 1}}), typed={ANY: typed})

    (refusal,) = plan.refusals
    assert (refusal.slot, plan.changes) == (f"{ANY}.a.b", {})


def test_neither_typed_nor_declared_values_are_changed_in_place(plan_of):
    typed = {"a": {"z": 0}}
    adjustment = Default(ANY, {"a": {"b": {"c": 1}}, "l": [1]})
    plan = plan_of(adjustment, typed={ANY: typed})

    plan.changes[ANY]["a"]["b"]["c"] = 2
    plan.changes[ANY]["l"].append(2)

    assert (typed, adjustment.operand) == ({"a": {"z": 0}}, {"a": {"b": {"c": 1}}, "l": [1]})


# ---- a conflict names everybody with distribution, version, file and line, and the switch that it names settles it

MAPPING = "engine.hf_overrides"
#: What several quirks want, each given as a list of adjustments, in order of their ids.
CONFLICTS = {
    "two defaults": [[Default(SLOT, "auto")], [Default(SLOT, "dummy")]],
    "three quirks with two requirements": [[Require(SLOT, "auto")], [Require(SLOT, "dummy")], [Require(SLOT, "auto")]],
    "three values of an argument": [[Default("engine.any_argument", number)] for number in (0, 1, True)],
    "two variables": [[Require("env.NAME", "0")], [Require("env.NAME", "1")]],
    "two bounds": [[Require("engine.seed", at_most=1)], [Require("engine.seed", at_least=2)]],
    "a bound and a value": [[Require("engine.seed", at_most=1)], [Require("engine.seed", 2)]],
    "two choices": [[Default(SLOT, one_of=["a", "b"])], [Default(SLOT, one_of=["c"])]],
    "two that agree and a third": [[Require(SLOT, one_of=choices)] for choices in (["a", "b"], ["b", "a"], ["c"])],
    "a list and a member": [[Require(STOPS, [1])], [Require(STOPS, includes=[2])]],
    "a value and a key": [[Require(ANY, 1)], [Require(ANY, {"a": 1})]],
    "one key of a mapping": [[Default(MAPPING, {"a": {"b": 1}})], [Default(MAPPING, {"a": {"b": 2}})]],
    "a key and two keys far below it": [
        [Require(MAPPING, {"a": 1})],
        [Require(MAPPING, {"a": {"b": {"c": 1}}})],
        [Require(MAPPING, {"a": {"b": {"d": 1}}})],
    ],
    "a requirement and a default below it": [[Require(MAPPING, {"a": 1})], [Default(MAPPING, {"a": {"b": 1}})]],
}


@pytest.fixture
def conflict_of(make_quirk, make_plan):
    """Resolves quirks of different files, with some of them switched off."""

    def make(wanted, off=()):
        quirks = [
            make_quirk(id=f"quirk-{n}", adjustments=adjustments, location=Location(f"pack_{n}/file.py", 10 + n))
            for n, adjustments in enumerate(wanted)
        ]
        return make_plan(*quirks, disable=off)

    return make


def ways_out(refusal):
    """The alternatives that a refusal's switch names, each as the ids to switch off."""
    by_option = [re.findall(r"--disable (\S+)", way) for way in re.split(r"\) or ", refusal.switch)]
    by_key = [found.split(", ") for found in re.findall(r"quirks\.disable: \[(.*?)\]", refusal.switch)]
    assert by_option == by_key
    return by_option


@pytest.mark.parametrize("wanted", CONFLICTS.values(), ids=list(CONFLICTS))
def test_a_conflict_names_everybody_with_switches_to_settle_it(conflict_of, wanted):
    plan = conflict_of(wanted)

    listed = "\n".join(map(str, plan.refusals))
    assert plan.refusals
    assert plan.changes == {}
    assert {item.status for item in plan.adjustments} == {Status.CONFLICT}
    for n in range(len(wanted)):
        assert f"quirk-{n} (example-quirks 1.2, pack_{n}/file.py:{10 + n})" in listed
        assert re.search(rf"quirk-{n} wants \S+ (=|≤|≥|one of|includes) \S", listed)
    for refusal in plan.refusals:
        assert (refusal.kind, refusal.slot in refusal.reason) == ("conflict", True)
        for off in ways_out(refusal):
            assert set(off) < {quirk.id for quirk in refusal.quirks}
            assert refusal.slot not in {left.slot for left in conflict_of(wanted, off).refusals}


def test_a_quirk_that_contradicts_itself_is_named(conflict_of):
    wanted = [[Default("engine.seed", 1), Default("engine.seed", 2)]]

    (refusal,) = conflict_of(wanted).refusals

    assert ways_out(refusal) == [["quirk-0"]]
    assert conflict_of(wanted, ["quirk-0"]).refusals == ()
