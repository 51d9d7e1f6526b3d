"""Variables that the installed vLLM does not read are named."""

from __future__ import annotations

import pytest

UNREAD = {"VLLM_USE_V1": "1", "VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}


def test_every_variable_without_effect_is_named_in_one_warning_wherever_it_was_set(plan_for):
    outcome = plan_for("qwen3", environ=UNREAD)

    (warning,) = outcome.warnings
    assert "does not read VLLM_ATTENTION_BACKEND, VLLM_USE_V1" in warning
    assert outcome.plan.context.packages["vllm"] in warning
    assert "VLLM_ATTENTION_BACKEND" in plan_for("qwen3", {"env.VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}).warnings[0]


@pytest.mark.parametrize("environ", [{}, {"VLLM_LOGGING_LEVEL": "INFO"}, {"NRL_VLLM_USE_V1": "1"}, {"PATH": "/bin"}])
def test_variables_that_are_read_or_are_not_vllms_give_no_warning(plan_for, environ):
    outcome = plan_for("qwen3", environ=environ)

    assert (outcome.state, outcome.warnings) == ("not_matched", [])


def test_what_an_assumed_engine_reads_is_unknown_and_the_plan_says_so(plan_for):
    outcome = plan_for("qwen3", assume=["vllm==0.10.2"], environ=UNREAD)

    assert outcome.state == "unknown"
    assert "cannot be decided" in outcome.warnings[0]


def test_a_secret_is_never_read_and_never_shown(plan_for):
    plan = plan_for("qwen3", {"env": {"VLLM_HF_TOKEN": "hunter2"}}, environ={"VLLM_API_KEY": "hunter2", **UNREAD}).plan

    for secret in ("hunter2", "VLLM_API_KEY", "VLLM_HF_TOKEN"):
        assert secret not in plan.to_json()
