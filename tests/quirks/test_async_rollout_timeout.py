"""A rollout request is given up after a documented time."""

from __future__ import annotations

import pytest

QWEN3 = {"model_type": "qwen3"}
VARIABLE = "NRL_VLLM_ASYNC_TIMEOUT_SECONDS"
UNUSABLE = ["", "0", "0.0", "-5", "ten", "inf", "nan", "1e3", "600s"]


def test_the_time_limit_is_the_documented_600_seconds(plan_for):
    outcome = plan_for(QWEN3)

    assert outcome.changes == {"request.timeout_s": 600.0}


@pytest.mark.parametrize(("text", "seconds"), [("900", 900.0), ("0.5", 0.5), (" 60 ", 60.0), ("+30", 30.0)])
def test_the_variable_sets_it(plan_for, text, seconds):
    outcome = plan_for(QWEN3, environ={VARIABLE: text})

    assert outcome.changes == {"request.timeout_s": seconds}


def test_the_configuration_s_env_section_beats_the_shell(plan_for):
    outcome = plan_for(QWEN3, {"env": {VARIABLE: 30}}, environ={VARIABLE: "900"})

    assert outcome.changes == {"request.timeout_s": 30.0}


@pytest.mark.parametrize("text", UNUSABLE)
def test_a_variable_that_is_no_positive_number_of_seconds_is_refused(plan_for, text):
    outcome = plan_for(QWEN3, environ={VARIABLE: text})

    (refusal,) = outcome.refusals
    assert refusal.kind == "refuse"
    assert f"{VARIABLE} is not a positive number of seconds" in refusal.reason
    assert f"export {VARIABLE}=600" in refusal.remedy
    assert "--disable async-rollout-timeout" in refusal.switch


@pytest.mark.parametrize("environ", [{}, {VARIABLE: "900"}])
def test_the_user_s_explicit_limit_wins_over_default_and_variable(plan_for, environ):
    outcome = plan_for(QWEN3, {"request": {"timeout_s": 5}}, environ=environ)

    assert outcome.adjustments["request.timeout_s"].status == "kept_user"
    assert outcome.plan.value("request.timeout_s") == 5


def test_an_explicit_limit_is_the_remedy_for_an_unusable_variable(plan_for):
    outcome = plan_for(QWEN3, {"request": {"timeout_s": 5}}, environ={VARIABLE: "ten"})

    assert outcome.refusals == []
    assert outcome.plan.value("request.timeout_s") == 5


@pytest.mark.parametrize(
    "values",
    [{"engine": {"async_engine": False}}, {"purpose": "eval"}, {"purpose": "serve"}],
    ids=["synchronous", "eval", "serve"],
)
def test_only_asynchronous_rollouts_have_a_limit(plan_for, values):
    outcome = plan_for(QWEN3, values, environ={VARIABLE: "900"})

    assert outcome.state == "not_matched"
    assert outcome.plan.value("request.timeout_s") is None


@pytest.mark.parametrize("switch", ["async-rollout-timeout", "timeout"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(QWEN3, environ={VARIABLE: "ten"}, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.refusals == ()
    assert outcome.plan.value("request.timeout_s") is None
