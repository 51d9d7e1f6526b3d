"""Bisection of quirks: what it finds is minimal and turns one outcome into the other, whatever the oracle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quirks_core.cli.bisect import bisect

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


def is_minimal(part, holds):
    """It holds for the part, and not for the part without any one."""
    return holds(frozenset(part)) and not any(holds(frozenset(part) - {name}) for name in part)


@laws
@given(causes=CAUSES, passes=st.booleans())
def test_what_is_found_is_minimal_and_turns_the_outcome(causes, passes):
    outcome = Oracle(lambda disabled: any(cause <= disabled for cause in causes) is not passes)

    finding = bisect(NAMES, outcome)

    assert finding.passes is passes
    assert frozenset(finding.explanation) in causes
    assert is_minimal(finding.explanation, lambda off: outcome.answer(off) is finding.passes_without)
    # No set is attempted twice, but the base ones once more at the end.
    assert outcome.asked[-2:] == [frozenset(), frozenset(NAMES)]
    assert len(outcome.asked) == len(set(outcome.asked)) + 2


def test_a_single_cause_among_many_takes_few_runs():
    oracle = Oracle(lambda off: "q617" in off)

    assert bisect([f"q{number}" for number in range(1000)], oracle).explanation == ("q617",)
    assert len(oracle.asked) <= 4 + 2 * 10


@pytest.mark.parametrize("liar", [frozenset(), frozenset(NAMES)], ids=["nothing disabled", "everything disabled"])
def test_a_base_run_that_ends_otherwise_the_second_time_is_flaky(liar):
    times = []

    def passes(disabled):
        times.append(disabled)
        return ("q03" in disabled) is not (disabled == liar and times.count(liar) > 1)

    finding = bisect(NAMES, passes)

    assert (finding.flaky, finding.explained, finding.explanation) == (True, False, ("q03",))
    assert "flaky" in str(finding)
