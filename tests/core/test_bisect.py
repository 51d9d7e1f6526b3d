"""Bisection of quirks: what it finds is minimal and turns one outcome into the other, whatever the oracle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quirks_core.cli.bisect import bisect

NAMES = tuple(f"q{number:02}" for number in range(12))
CAUSES = st.lists(st.frozensets(st.sampled_from(NAMES), min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=200)
@given(causes=CAUSES, passes=st.booleans())
def test_what_is_found_is_minimal_and_turns_the_outcome(causes, passes):
    asked = []

    def attempt(disabled):
        asked.append(disabled)
        return any(cause <= disabled for cause in causes) is not passes

    finding = bisect(NAMES, attempt)

    # No set is attempted twice, but the base ones once more at the end.
    assert asked[-2:] == [frozenset(), frozenset(NAMES)]
    assert len(asked) == len(set(asked)) + 2
    assert (finding.passes, finding.passes_without) == (passes, not passes)
    found = frozenset(finding.explanation)
    assert found in causes
    assert [attempt(off) for off in (found, *(found - {name} for name in found))] == [not passes, *[passes] * len(found)]


def test_a_single_cause_among_many_takes_few_runs():
    asked = []

    def attempt(disabled):
        asked.append(disabled)
        return "q617" in disabled

    assert bisect([f"q{number}" for number in range(1000)], attempt).explanation == ("q617",)
    assert len(asked) <= 4 + 2 * 10


@pytest.mark.parametrize("liar", [frozenset(), frozenset(NAMES)], ids=["nothing disabled", "everything disabled"])
def test_a_base_run_that_ends_otherwise_the_second_time_is_flaky(liar):
    times = []

    def passes(disabled):
        times.append(disabled)
        return ("q03" in disabled) is not (disabled == liar and times.count(liar) > 1)

    finding = bisect(NAMES, passes)

    assert (finding.flaky, finding.explained, finding.explanation) == (True, False, ("q03",))
    assert "flaky" in str(finding)
