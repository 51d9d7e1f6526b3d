"""A trainer needs the logprobs of the distribution that was sampled from."""

from __future__ import annotations

import pytest

QWEN3 = {"model_type": "qwen3"}
NEW = ["vllm==0.32.0"]


def test_rollouts_report_processed_logprobs(plan_for):
    outcome = plan_for(QWEN3, assume=NEW)

    assert outcome.changes == {"engine.logprobs_mode": "processed_logprobs"}
    assert outcome.adjustments["engine.logprobs_mode"].strength == "default"


@pytest.mark.parametrize("purpose", ["eval", "serve"])
def test_runs_without_a_trainer_keep_the_engine_s_choice(plan_for, purpose):
    outcome = plan_for(QWEN3, {"purpose": purpose}, assume=NEW)

    assert outcome.state == "not_matched"
    assert outcome.plan.value("engine.logprobs_mode") is None


def test_the_user_s_explicit_mode_wins_and_the_plan_says_so(plan_for):
    outcome = plan_for(QWEN3, {"engine": {"logprobs_mode": "raw_logprobs"}}, assume=NEW)

    adjustment = outcome.adjustments["engine.logprobs_mode"]
    assert adjustment.status == "kept_user"
    assert "'raw_logprobs'" in adjustment.reason
    assert outcome.plan.value("engine.logprobs_mode") == "raw_logprobs"


@pytest.mark.parametrize("version", ["0.9.1", "0.10.1", "0.10.2rc1"])
def test_engines_without_a_usable_mode_leave_it_dormant(plan_for, version):
    outcome = plan_for(QWEN3, assume=[f"vllm=={version}"])

    assert outcome.state == "dormant"
    assert version in outcome.verdict.because
    assert outcome.plan.value("engine.logprobs_mode") is None


def test_the_first_engine_with_a_usable_mode_gets_it(plan_for):
    outcome = plan_for(QWEN3, assume=["vllm==0.10.2"])

    assert outcome.state == "active"


def test_an_assumed_source_build_is_unknown_and_says_so(plan_for):
    outcome = plan_for(QWEN3, assume=["vllm==0.1.dev1+g123"])

    assert outcome.state == "unknown"
    assert outcome.warnings


@pytest.mark.parametrize("switch", ["rollout-logprobs-processed", "logprobs"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(QWEN3, assume=NEW, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.value("engine.logprobs_mode") is None
