"""The logprobs of samples with a minimum length are the policy's own where no other sampling changes them."""

from __future__ import annotations

import pytest

SLOT = "engine.logprobs_mode"
LEAST = {"sampling.min_new_tokens": 4}


def test_at_temperature_1_raw_logprobs_win_over_the_default_of_rollouts(plan_for):
    outcome = plan_for("qwen3", LEAST)

    assert (outcome.changes, outcome.plan.refusals) == ({SLOT: "raw_logprobs"}, ())


def test_a_typed_processed_mode_stays_and_logits_are_refused(plan_for):
    typed = plan_for("qwen3", {**LEAST, SLOT: "processed_logprobs"})

    assert (typed.statuses, typed.refusals) == ({SLOT: "kept_user"}, [])
    assert plan_for("qwen3", {**LEAST, SLOT: "raw_logits"}).refusals


@pytest.mark.parametrize("other", [{"sampling.temperature": 0.5}, {"sampling.top_p": 0.9}, {"sampling.top_k": 5}])
def test_any_other_sampling_and_no_minimum_keep_the_processed_mode(plan_for, other):
    for settings in ({**LEAST, **other}, {}):
        outcome = plan_for("qwen3", settings)

        assert (outcome.state, outcome.plan.value(SLOT)) == ("not_matched", "processed_logprobs")
