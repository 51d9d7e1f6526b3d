"""A trainer needs the logprobs of the distribution that was sampled from."""

from __future__ import annotations

import pytest

SLOT = "engine.logprobs_mode"
NEW = ["vllm==0.32.0"]


def test_rollouts_report_processed_logprobs_unless_the_user_wants_others(plan_for):
    outcome = plan_for("qwen3", {SLOT: "raw_logprobs"}, assume=NEW)

    assert plan_for("qwen3", assume=NEW).changes == {SLOT: "processed_logprobs"}
    assert (outcome.statuses, outcome.plan.value(SLOT)) == ({SLOT: "kept_user"}, "raw_logprobs")
    assert "'raw_logprobs'" in outcome.adjustments[SLOT].reason


@pytest.mark.parametrize(
    ("sampling", "is_told"), [({}, False), ({"sampling.top_p": 0.9}, True), ({"sampling.top_k": 50}, True)]
)
def test_who_samples_from_a_part_of_the_distribution_is_told_what_the_trainer_must_do(plan_for, sampling, is_told):
    warnings = plan_for("qwen3", sampling, assume=NEW).warnings

    assert ["renormalised over the kept tokens" in warning for warning in warnings] == [True] * is_told


@pytest.mark.parametrize(
    ("version", "state"), [("0.9.1", "dormant"), ("0.10.2rc1", "dormant"), ("0.10.2", "active"), ("0.1.dev1+g123", "unknown")]
)
def test_it_begins_with_the_first_engine_with_a_usable_mode(plan_for, version, state):
    outcome = plan_for("qwen3", assume=[f"vllm=={version}"])

    assert outcome.state == state
    assert outcome.plan.value(SLOT) == ("processed_logprobs" if state == "active" else None)
