"""The merge laws over all relations: the value suits everybody, and a conflict absorbs; a set has no order."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from quirks_core.declaration.adjustments import Relation
from quirks_core.plan.merge import Proposal, Proposals, by_place, overlapping
from quirks_core.plan.records import Contributor

SLOT = "engine.any_argument"
EQUALS, AT_MOST, AT_LEAST, ONE_OF, INCLUDES = Relation
laws = settings(max_examples=150)


def proposal(relation, operand, quirk="q", *, required=False, instead_of=()):
    """What a quirk asks of a slot."""
    who = Contributor(id=quirk, distribution="dist", version="1", location="a.py:1", reason="because")
    return Proposal((SLOT,), relation, operand, required, who, instead_of=instead_of)


def together(*ledgers):
    """All proposals of several ledgers."""
    return Proposals((SLOT,), frozenset().union(*(ledger.proposals for ledger in ledgers)))


NUMBERS = st.sampled_from([0, 1, 2, 2.0, 2.5, 3])
LISTS = st.lists(st.integers(0, 2), max_size=2, unique=True).map(sorted)
SCALARS = NUMBERS | st.booleans() | st.sampled_from(["auto", "dummy"]) | LISTS
ASKED = st.one_of(
    st.tuples(st.just(EQUALS), SCALARS),
    st.tuples(st.sampled_from([AT_MOST, AT_LEAST]), NUMBERS),
    st.tuples(st.just(ONE_OF), st.lists(SCALARS, min_size=1, max_size=3)),
    st.tuples(st.just(INCLUDES), LISTS),
)
PROPOSALS = st.builds(
    lambda asked, quirk, required, contrary: proposal(*asked, quirk, required=required, instead_of=contrary),
    ASKED,
    st.sampled_from("abcd"),
    st.booleans(),
    st.sampled_from([(), ("dummy",)]),
)
PROPOSALS_OF_A_PLACE = st.frozensets(PROPOSALS, min_size=1, max_size=4).map(lambda found: Proposals((SLOT,), found))
PRESENT = st.none() | SCALARS
#: Every value that a proposal of these tests could name or allow, as far as it can matter.
UNIVERSE = [*(number / 2 for number in range(-1, 8)), *range(-1, 4), True, False, "auto", "dummy"]
UNIVERSE += [list(members) for count in range(4) for members in itertools.combinations(range(3), count)]


@laws
@given(PROPOSALS_OF_A_PLACE, PROPOSALS_OF_A_PLACE)
def test_a_conflict_stays_one_whatever_of_its_strength_joins_it(conflict, more):
    required = any(item.required for item in conflict.proposals)
    joining = Proposals((SLOT,), frozenset(item for item in more.proposals if item.required is required))

    merged = together(conflict, joining)

    if conflict.is_conflict:
        assert (merged.is_conflict, merged.value()) == (True, None)
        assert {*conflict.strongest, *joining.proposals} == set(merged.strongest)


@laws
@given(PROPOSALS_OF_A_PLACE, PRESENT)
def test_the_value_suits_everybody_unless_no_value_could(ledger, present):
    value = ledger.value(present)

    assert ledger.is_conflict or all(item.allows(value) for item in ledger.strongest)
    assert ledger.is_conflict is not any(all(item.allows(value) for item in ledger.strongest) for value in UNIVERSE)


@laws
@given(PROPOSALS_OF_A_PLACE, ASKED)
def test_requirements_silence_defaults_unless_all_add_members(ledger, asked):
    merged = together(ledger, Proposals((SLOT,), frozenset({proposal(*asked, required=True)})))

    required = {item for item in merged.proposals if item.required}
    members = {item for item in merged.proposals if item.relation is INCLUDES}
    assert set(merged.strongest) == (required | members if required <= members else required)


def test_proposals_that_ask_the_same_are_one():
    strict = proposal(EQUALS, "auto", required=True)

    assert proposal(INCLUDES, [2, 1, 2]) == proposal(INCLUDES, [1, 2])
    assert strict != proposal(EQUALS, "auto", required=True, instead_of=("dummy",))
    assert strict != proposal(ONE_OF, ["auto"], required=True)


KEYS = st.sampled_from(["a", "b", "a.b"])
TREES = st.recursive(st.integers(0, 2), lambda below: st.dictionaries(KEYS, below, min_size=1, max_size=3), max_leaves=6)
MAPPINGS = st.dictionaries(KEYS, TREES, min_size=1, max_size=3)


def leaves(value, place=(SLOT,)):
    """The places of every value in a nested mapping."""
    return set().union(*(leaves(item, (*place, key)) for key, item in value.items())) if isinstance(value, dict) else {place}


@laws
@given(MAPPINGS, MAPPINGS)
def test_a_mapping_falls_into_one_ledger_per_key(one, two):
    made = by_place([proposal(EQUALS, one, "one"), proposal(EQUALS, two, "two")])

    places = [ledger.place for ledger in made]
    assert sorted(places) == sorted(leaves(one) | leaves(two))
    pairs = {(outer.place, inner.place) for outer, inner in overlapping(made)}
    assert pairs == {(a, b) for a in places for b in places if len(a) < len(b) and b[: len(a)] == a}
