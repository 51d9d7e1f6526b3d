"""A rollout request is given up after a documented time."""

from __future__ import annotations

import pytest

SLOT, VARIABLE = "request.timeout_s", "NRL_VLLM_ASYNC_TIMEOUT_SECONDS"


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 600.0),
        *(({VARIABLE: text}, value) for text, value in [("900", 900.0), ("0.5", 0.5), (" 60 ", 60.0), ("+30", 30.0)]),
    ],
    ids=str,
)
def test_the_time_limit_is_the_documented_600_seconds_unless_the_variable_sets_it(plan_for, environ, seconds):
    assert plan_for("qwen3", environ=environ).changes == {SLOT: seconds}


def test_the_configurations_env_section_beats_the_shell(plan_for):
    assert plan_for("qwen3", {f"env.{VARIABLE}": 30}, environ={VARIABLE: "900"}).changes == {SLOT: 30.0}


@pytest.mark.parametrize("text", ["", "0", "0.0", "-5", "ten", "inf", "nan", "1e3", "600s"])
def test_a_variable_that_is_no_positive_number_of_seconds_is_refused_unless_a_limit_is_typed(plan_for, text):
    (refusal,) = plan_for("qwen3", environ={VARIABLE: text}).refusals

    assert f"{VARIABLE} is not a positive number of seconds" in refusal.reason
    assert f"export {VARIABLE}=600" in refusal.remedy
    assert plan_for("qwen3", {SLOT: 5}, environ={VARIABLE: text}).refusals == []


@pytest.mark.parametrize("environ", [{}, {VARIABLE: "900"}])
@pytest.mark.parametrize("typed", [5, 5000])
def test_the_users_explicit_limit_wins_over_default_and_variable(plan_for, environ, typed):
    outcome = plan_for("qwen3", {SLOT: typed}, environ=environ)

    assert outcome.refusals == []
    assert outcome.plan.value(SLOT) == typed


@pytest.mark.parametrize("settings", [{"engine.async_engine": False}, {"purpose": "eval"}, {"purpose": "serve"}], ids=str)
def test_only_asynchronous_rollouts_have_a_limit(plan_for, settings):
    assert plan_for("qwen3", settings, environ={VARIABLE: "900"}).state == "not_matched"
