"""Delta debugging: what it finds is minimal and turns one outcome into the other, whatever the oracle."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quirks_core.cli.delta_debugging import Finding, bisect, ddmin

NAMES = tuple(f"q{number:02}" for number in range(12))
CAUSES = st.lists(st.frozensets(st.sampled_from(NAMES), min_size=1, max_size=4), min_size=1, max_size=3)
laws = settings(max_examples=200)


class Oracle:
    """An attempt that remembers what it was asked."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def __call__(self, disabled):
        """Notes the question, and answers it."""
        self.asked.append(disabled)
        return self.answer(disabled)


def arbitrary(seed, share):
    """An oracle without any structure: a coin for each set, the same every time."""
    return lambda disabled: random.Random(f"{seed} {sorted(disabled)}").random() < share  # noqa: S311


def is_minimal(part, holds):
    """It holds for the part, and not for the part without any one."""
    return holds(frozenset(part)) and not any(holds(frozenset(part) - {name}) for name in part)


@laws
@given(items=st.permutations(NAMES), causes=CAUSES, passes=st.booleans())
def test_the_smallest_causes_of_a_monotone_command_are_found(items, causes, passes):
    oracle = Oracle(lambda part: any(cause <= part for cause in causes))
    outcome = Oracle(lambda disabled: oracle.answer(disabled) is not passes)

    found, finding = ddmin(items, oracle), bisect(NAMES, outcome)

    named = {name for quirks in finding.explanations for name in quirks}
    assert frozenset(found) in causes
    assert is_minimal(found, oracle.answer)
    assert finding.passes is outcome.answer(frozenset(NAMES) - named) is passes
    assert all(frozenset(quirks) in causes for quirks in finding.explanations)
    # No set is attempted twice, but the base ones once more at the end.
    assert len(oracle.asked) == len(set(oracle.asked))
    assert outcome.asked[-2:] == [frozenset(), frozenset(NAMES)]
    assert len(outcome.asked) == len(set(outcome.asked)) + 2


@laws
@given(items=st.lists(st.sampled_from(NAMES), unique=True, min_size=1), seed=st.integers(), share=st.floats(0, 1))
def test_the_causes_that_are_found_of_any_command_are_one_minimal(items, seed, share):
    coin = arbitrary(seed, share)
    oracle = Oracle(lambda part: part == frozenset(items) or coin(part))

    found, finding = ddmin(items, oracle), bisect(items, coin)

    assert is_minimal(found, oracle.answer)
    assert len(oracle.asked) == len(set(oracle.asked))
    assert (bool(finding.explanations), finding.flaky) == (finding.passes is not finding.passes_without, False)
    assert all(is_minimal(part, lambda off: coin(off) is finding.passes_without) for part in finding.explanations)
    named = [name for quirks in finding.explanations for name in quirks]
    assert len(named) == len(set(named))


def test_the_single_cause_among_many_is_found_in_logarithmic_time():
    oracle = Oracle(lambda part: "q617" in part)

    assert ddmin([f"q{number}" for number in range(1000)], oracle) == ("q617",)
    assert len(oracle.asked) <= 2 + 2 * 10


def test_what_holds_of_nothing_needs_no_item():
    assert ddmin(NAMES, lambda _: True) == ()


def test_what_does_not_hold_of_all_is_an_error():
    with pytest.raises(ValueError, match="whole set"):
        ddmin(NAMES, lambda _: False)


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
        (
            lambda off: "q03" not in off and not {"q05", "q07"} <= off,
            "it passes only because of all of these: q03; q05 or q07",
        ),
        (lambda _: True, "no quirk explains it: the command passes with and without them"),
        (lambda _: False, "no quirk explains it: the command fails with and without them"),
    ],
)
def test_the_summary_says_which_quirks_make_the_difference(passes, summary):
    finding = bisect(NAMES, passes)

    assert (str(finding), finding.explained) == (summary, "explains" not in summary)


@pytest.mark.parametrize(("names", "asked"), [([], 0), (["q00"], 4), (NAMES, 4)])
def test_a_command_that_no_candidate_changes_costs_only_the_base_runs(names, asked):
    oracle = Oracle(lambda _: True)

    finding = bisect(names, oracle)

    assert oracle.asked == [frozenset(), frozenset(names)] * (asked // 2)
    assert (finding == Finding(candidates=()), "nothing to disable" in str(finding)) == (not names, not names)


@pytest.mark.parametrize("liar", [frozenset(), frozenset(NAMES)], ids=["nothing disabled", "everything disabled"])
def test_a_base_run_that_ends_differently_the_second_time_is_flaky(liar):
    times = []

    def passes(disabled):
        times.append(disabled)
        return ("q03" in disabled) is not (disabled == liar and times.count(liar) > 1)

    finding = bisect(NAMES, passes)

    assert (finding.flaky, finding.explained, finding.explanations) == (True, False, (("q03",),))
    assert "flaky" in str(finding)
