"""Delta debugging: what it finds is minimal and turns one outcome into the other, whatever the oracle."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quirks_core.bisect import Attempt, Finding, bisect, ddmin

NAMES = tuple(f"q{number:02}" for number in range(12))
SUBSETS = st.frozensets(st.sampled_from(NAMES), min_size=1, max_size=4)


class Oracle:
    """An attempt that remembers what it was asked."""

    def __init__(self, answer: Attempt) -> None:
        self.answer = answer
        self.asked: list[frozenset[str]] = []

    def __call__(self, disabled: frozenset[str]) -> bool:
        """Notes the question, and answers it."""
        self.asked.append(disabled)
        return self.answer(disabled)


def arbitrary(seed: int, share: float) -> Attempt:
    """An oracle without any structure: a coin for each set, the same every time."""
    return lambda disabled: random.Random(f"{seed} {sorted(disabled)}").random() < share  # noqa: S311


def assert_minimal(part: tuple[str, ...], holds: Attempt) -> None:
    """It holds for the part, and not for the part without any one."""
    assert holds(frozenset(part))
    assert not any(holds(frozenset(part) - {name}) for name in part)


@settings(max_examples=300, deadline=None)
@given(items=st.permutations(NAMES), causes=st.lists(SUBSETS, min_size=1, max_size=3))
def test_of_a_monotone_oracle_ddmin_finds_one_of_the_smallest_causes(items, causes):
    oracle = Oracle(lambda part: any(cause <= part for cause in causes))

    found = ddmin(items, oracle)

    assert frozenset(found) in causes
    assert_minimal(found, oracle.answer)
    assert len(oracle.asked) == len(set(oracle.asked))


@settings(max_examples=300, deadline=None)
@given(
    items=st.lists(st.sampled_from(NAMES), unique=True),
    seed=st.integers(),
    share=st.floats(0, 1),
)
def test_of_any_oracle_that_holds_for_all_ddmin_finds_a_part_that_is_one_minimal(items, seed, share):
    coin = arbitrary(seed, share)
    oracle = Oracle(lambda part: part == frozenset(items) or coin(part))

    found = ddmin(items, oracle)

    assert set(found) <= set(items)
    assert_minimal(found, oracle.answer)
    assert len(oracle.asked) == len(set(oracle.asked))


def test_the_single_cause_among_many_is_found_in_logarithmic_time():
    items = [f"q{number}" for number in range(1000)]
    oracle = Oracle(lambda part: "q617" in part)

    assert ddmin(items, oracle) == ("q617",)
    assert len(oracle.asked) <= 2 + 2 * 10


def test_ddmin_of_something_that_does_not_hold_for_the_whole_is_an_error():
    with pytest.raises(ValueError, match="whole set"):
        ddmin(NAMES, lambda _: False)


def test_what_holds_of_nothing_at_all_needs_no_item():
    assert ddmin(NAMES, lambda _: True) == ()


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(), share=st.floats(0, 1), number=st.integers(1, 8))
def test_every_explanation_of_any_command_turns_the_first_outcome_into_the_second(seed, share, number):
    oracle = Oracle(arbitrary(seed, share))

    finding = bisect(NAMES[:number], oracle)

    assert bool(finding.explanations) is (finding.passes is not finding.passes_without)
    assert not finding.flaky
    for quirks in finding.explanations:
        assert_minimal(quirks, lambda disabled: oracle.answer(disabled) is finding.passes_without)
    named = [name for quirks in finding.explanations for name in quirks]
    assert len(named) == len(set(named))


@settings(max_examples=200, deadline=None)
@given(causes=st.lists(SUBSETS, min_size=1, max_size=3), passes=st.booleans())
def test_of_a_monotone_command_disabling_what_no_explanation_names_changes_nothing(causes, passes):
    oracle = Oracle(lambda disabled: any(cause <= disabled for cause in causes) is not passes)

    finding = bisect(NAMES, oracle)

    named = {name for quirks in finding.explanations for name in quirks}
    assert finding.passes is passes
    assert oracle.answer(frozenset(NAMES) - named) is passes
    assert all(frozenset(quirks) in causes for quirks in finding.explanations)


@pytest.mark.parametrize(
    ("passes", "summary"),
    [
        # what passes, given the set of disabled quirks
        (lambda off: "q03" in off, "it fails unless q03 is disabled"),
        (lambda off: {"q03", "q07"} <= off, "it fails unless q03 and q07 together are disabled"),
        (
            lambda off: "q03" in off or {"q05", "q07"} <= off,
            "it fails unless one of these is disabled: q03; q05 and q07 together",
        ),
        (lambda off: "q03" not in off, "it passes only because of q03"),
        (lambda off: not {"q03", "q07"} <= off, "it passes only because of q03 or q07 (any one of them is enough)"),
        (lambda off: off.isdisjoint({"q03", "q07"}), "it passes only because of all of these: q03; q07"),
        (
            lambda off: "q03" not in off and not {"q05", "q07"} <= off,
            "it passes only because of all of these: q03; q05 or q07",
        ),
    ],
)
def test_the_summary_says_in_which_direction_and_whether_all_or_one(passes, summary):
    finding = bisect(NAMES, passes)

    assert finding.explained
    assert str(finding) == summary


@pytest.mark.parametrize(("outcome", "word"), [(True, "passes"), (False, "fails")])
def test_an_outcome_that_no_quirk_changes_costs_the_base_runs_alone(outcome, word):
    oracle = Oracle(lambda _: outcome)

    finding = bisect(NAMES, oracle)

    assert not finding.explained
    assert str(finding) == f"no quirk explains it: the command {word} with and without them"
    assert oracle.asked == [frozenset(), frozenset(NAMES)] * 2


def test_without_a_candidate_nothing_is_run():
    oracle = Oracle(lambda _: True)

    finding = bisect([], oracle)

    assert finding == Finding(candidates=())
    assert (finding.explained, oracle.asked) == (False, [])
    assert "nothing to disable" in str(finding)


def test_one_candidate_is_explained_by_the_base_runs():
    oracle = Oracle(lambda disabled: not disabled)

    finding = bisect(["q00"], oracle)

    assert str(finding) == "it passes only because of q00"
    assert oracle.asked == [frozenset(), frozenset({"q00"})] * 2


def test_no_set_is_attempted_twice_but_the_base_ones_at_the_end():
    oracle = Oracle(lambda disabled: {"q01", "q10"} <= disabled)

    bisect([*NAMES, *NAMES], oracle)

    *search, last, very_last = oracle.asked
    assert (last, very_last) == (frozenset(), frozenset(NAMES))
    assert len(search) == len(set(search))


@pytest.mark.parametrize("liar", [frozenset(), frozenset(NAMES)], ids=["nothing disabled", "everything disabled"])
def test_a_base_run_that_ends_differently_the_second_time_is_flaky_and_explains_nothing(liar):
    times: list[frozenset[str]] = []

    def passes(disabled: frozenset[str]) -> bool:
        times.append(disabled)
        again = disabled == liar and times.count(liar) > 1
        return ("q03" in disabled) is not again

    finding = bisect(NAMES, passes)

    assert finding.flaky
    assert not finding.explained
    assert finding.explanations == (("q03",),)
    assert "flaky" in str(finding)
