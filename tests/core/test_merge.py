"""The merge laws of every kind of slot: order, repetition and grouping of wishes cannot show; a conflict absorbs."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quirks_core.merge import Ledger, Wish, in_order, ledgers, overlapping
from quirks_core.plan import Contributor
from quirks_core.slots import SLOTS, SlotKind

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "engine.load_format": st.sampled_from(["auto", "dummy", "sharded"]),
    "engine.gpu_memory_utilization": st.floats(0.1, 1.0, allow_nan=False),
    "request.timeout_s": st.floats(1.0, 1000.0, allow_nan=False),
    "sampling.stop_token_ids": st.lists(st.integers(0, 5), max_size=4),
    "engine.hf_overrides": st.integers(0, 2),  # of one key
}
#: Enough to find what is wrong, few enough to run every time; the machine may be busy.
laws = settings(max_examples=25, deadline=None)
KINDS = {SLOTS[slot].kind for slot in VALUES}
every_kind = pytest.mark.parametrize("slot", VALUES)


def test_these_laws_are_tested_on_every_kind_of_slot() -> None:
    assert set(SlotKind) == KINDS


def wish(slot: str, value: Any, quirk: str = "q", *, required: bool = False, **more: Any) -> Wish:
    """A quirk's wish."""
    who = Contributor(id=quirk, distribution="dist", version="1", location="a.py:1", reason="because")
    return Wish(slot, value, required, who, keys=("key",) if slot == "engine.hf_overrides" else (), **more)


def a_ledger(slot: str) -> st.SearchStrategy[Ledger]:
    """Ledgers of one slot with up to four wishes."""
    wishes = st.builds(
        lambda value, quirk, required, contrary: wish(slot, value, quirk, required=required, instead_of=contrary),
        VALUES[slot],
        st.sampled_from("abcd"),
        st.booleans(),
        st.sampled_from([(), ("dummy",)]),
    )
    return st.frozensets(wishes, min_size=1, max_size=4).map(lambda found: Ledger(next(iter(found)).place, found))


def seen(ledger: Ledger) -> tuple[Any, ...]:
    """Everything that a ledger tells, down to what equality leaves out."""
    everything = [(item.quirk, item.text, item.required, item.instead_of) for item in in_order(ledger.wishes)]
    return ledger, ledger.value, ledger.is_conflict, [item.quirk for item in ledger.strongest], everything


@every_kind
@laws
@given(data=st.data())
def test_merging_is_commutative(slot: str, data: st.DataObject) -> None:
    a, b = (data.draw(a_ledger(slot)) for _ in "ab")

    assert seen(a | b) == seen(b | a)


@every_kind
@laws
@given(data=st.data())
def test_merging_is_associative(slot: str, data: st.DataObject) -> None:
    a, b, c = (data.draw(a_ledger(slot)) for _ in "abc")

    assert seen((a | b) | c) == seen(a | (b | c))


@every_kind
@laws
@given(data=st.data())
def test_merging_is_idempotent(slot: str, data: st.DataObject) -> None:
    a, b = (data.draw(a_ledger(slot)) for _ in "ab")

    assert seen(a | a) == seen(a)
    assert seen(a | b | b | a) == seen(a | b)


@every_kind
@laws
@given(data=st.data())
def test_the_value_does_not_depend_on_the_order_of_the_wishes(slot: str, data: st.DataObject) -> None:
    wishes = list(data.draw(a_ledger(slot)).wishes)
    ones = [Ledger(item.place, frozenset([item])) for item in wishes]

    forwards, backwards = functools.reduce(Ledger.__or__, ones), functools.reduce(Ledger.__or__, reversed(ones))

    assert seen(forwards) == seen(backwards)


@every_kind
@laws
@given(data=st.data())
def test_a_conflict_stays_one_whatever_of_its_strength_joins_it_and_keeps_everybody(slot: str, data: st.DataObject) -> None:
    conflict, more = (data.draw(a_ledger(slot)) for _ in "ab")
    required = conflict.strongest[0].required
    joining = Ledger(conflict.place, frozenset(item for item in more.wishes if item.required is required))

    merged = conflict | joining

    if conflict.is_conflict:
        assert (merged.is_conflict, merged.value) == (True, None)
        assert {*conflict.strongest, *joining.wishes} == set(merged.strongest)


@laws
@given(data=st.data())
def test_only_scalars_can_be_in_conflict(data: st.DataObject) -> None:
    slot = data.draw(st.sampled_from(sorted(VALUES)))

    ledger = data.draw(a_ledger(slot))

    assert not ledger.is_conflict or ledger.kind is SlotKind.SCALAR


@laws
@given(data=st.data(), required=st.booleans())
def test_the_strictest_bound_of_the_strongest_wins(data: st.DataObject, required: bool) -> None:
    values = data.draw(st.lists(st.floats(0.1, 1.0), min_size=1, max_size=5))
    at_most, at_least = "engine.gpu_memory_utilization", "request.timeout_s"

    most, least = (
        Ledger((slot,), frozenset(wish(slot, value, f"q{n}", required=required) for n, value in enumerate(values)))
        for slot in (at_most, at_least)
    )

    assert (most.value, least.value) == (min(values), max(values))


@pytest.mark.parametrize("slot", ["engine.load_format", "engine.gpu_memory_utilization", "request.timeout_s"])
@laws
@given(data=st.data())
def test_a_requirement_silences_every_default(slot: str, data: st.DataObject) -> None:
    ledger = data.draw(a_ledger(slot))
    value = data.draw(VALUES[slot])
    required = frozenset(item for item in ledger.wishes if item.required) | {wish(slot, value, "z", required=True)}

    merged = ledger | Ledger(ledger.place, required)

    assert seen(merged)[1:4] == seen(Ledger(ledger.place, required))[1:4]


@laws
@given(data=st.data())
def test_a_set_takes_the_members_of_everybody_defaults_and_requirements(data: st.DataObject) -> None:
    ledger = data.draw(a_ledger("sampling.stop_token_ids"))

    assert ledger.value == sorted({member for item in ledger.wishes for member in item.value})


def test_a_set_is_the_same_in_whatever_order_it_was_written() -> None:
    assert wish("sampling.stop_token_ids", [2, 1, 2]) == wish("sampling.stop_token_ids", (1, 2))


def test_two_wishes_that_tolerate_different_values_are_two_wishes() -> None:
    strict = wish("engine.load_format", "auto", required=True)
    lenient = wish("engine.load_format", "auto", required=True, instead_of=("dummy",))

    assert strict != lenient


KEYS = st.sampled_from(["a", "b", "a.b"])
TREES = st.recursive(st.integers(0, 2), lambda below: st.dictionaries(KEYS, below, min_size=1, max_size=3), max_leaves=6)
MAPPINGS = st.dictionaries(KEYS, TREES, min_size=1, max_size=3)


def mapping_wish(value: dict[str, Any], quirk: str) -> Wish:
    """A wish for several keys at once."""
    who = Contributor(id=quirk, distribution="dist", version="1", location="a.py:1", reason="because")
    return Wish("engine.hf_overrides", value, False, who)


def leaves(value: Any, place: tuple[str, ...] = ("engine.hf_overrides",)) -> set[tuple[str, ...]]:
    """The places of every value in a nested mapping."""
    if not isinstance(value, dict):
        return {place}
    return set().union(*(leaves(item, (*place, key)) for key, item in value.items()))


@laws
@given(MAPPINGS, MAPPINGS)
def test_a_mapping_falls_into_one_ledger_per_key_also_where_keys_hold_dots(one: dict[str, Any], two: dict[str, Any]) -> None:
    made = ledgers(frozenset([mapping_wish(one, "one"), mapping_wish(two, "two")]))

    assert {ledger.place for ledger in made} == leaves(one) | leaves(two)
    assert len(made) == len(leaves(one) | leaves(two))


@laws
@given(MAPPINGS, MAPPINGS)
def test_a_value_and_keys_below_it_overlap_and_nothing_else_does(one: dict[str, Any], two: dict[str, Any]) -> None:
    made = ledgers(frozenset([mapping_wish(one, "one"), mapping_wish(two, "two")]))

    pairs = {(outer.place, inner.place) for outer, inner in overlapping(made)}

    places = [ledger.place for ledger in made]
    assert pairs == {(a, b) for a in places for b in places if len(a) < len(b) and b[: len(a)] == a}
