"""Comparers of the lab: what counts as the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.lab.kit.lab import Generated, Lab

EXPECTED = Generated((1, 2, 3), (-0.5, -0.7, -0.1))


@pytest.mark.parametrize(
    ("tokens", "logprobs", "same"),
    [
        pytest.param((1, 2, 3), (-9.0, -9.0, -9.0), True, id="the same tokens"),
        pytest.param((1, 7, 9), (-0.5, -0.70001, -4.0), True, id="part at a near tie"),
        pytest.param((1, 7, 9), (-0.5, -0.6, -4.0), False, id="part where the other is less probable"),
        pytest.param((1, 7, 9), (-0.4, -0.7, -4.0), False, id="a difference of logprobs before they part"),
        pytest.param((1, 7, 9), (), False, id="without logprobs"),
        pytest.param((1, 2), (-0.5, -0.7), False, id="one less"),
    ],
)
def test_greedy_tokens_are_the_same_up_to_a_near_tie(tokens, logprobs, same) -> None:
    outcome = Lab(Path()).same_tokens([Generated(tokens, logprobs)], [EXPECTED])

    assert outcome.passed is same


def test_an_outcome_shows_the_prompt_that_differs_not_a_tie() -> None:
    tie, other = Generated((1, 7, 9), (-0.5, -0.7, -4.0)), Generated((1, 8, 3), (-0.5, -2.0, -0.1))

    outcome = Lab(Path()).same_tokens([tie, other], [EXPECTED, EXPECTED])

    assert (outcome.passed, outcome.got) == (False, "3 of 6: 1 8 3")
