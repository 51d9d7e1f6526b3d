"""Variables that the installed vLLM does not read are named."""

from __future__ import annotations

import pytest

QWEN3 = {"model_type": "qwen3"}
UNREAD = {"VLLM_USE_V1": "1", "VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}


def test_every_variable_without_effect_is_named_in_one_warning(plan_for):
    outcome = plan_for(QWEN3, environ=UNREAD)

    (warning,) = outcome.warnings
    assert "does not read VLLM_ATTENTION_BACKEND, VLLM_USE_V1" in warning
    assert outcome.plan.context.packages["vllm"] in warning


def test_a_variable_of_the_configuration_is_named_as_well(plan_for):
    outcome = plan_for(QWEN3, {"env": {"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}})

    assert "VLLM_ATTENTION_BACKEND" in outcome.warnings[0]


@pytest.mark.parametrize("environ", [{}, {"VLLM_LOGGING_LEVEL": "INFO"}, {"NRL_VLLM_USE_V1": "1"}, {"PATH": "/bin"}])
def test_variables_that_are_read_or_are_not_vllm_s_give_no_warning(plan_for, environ):
    outcome = plan_for(QWEN3, environ=environ)

    assert outcome.state == "not_matched"
    assert outcome.warnings == []


def test_what_an_assumed_engine_reads_is_unknown_and_the_plan_says_so(plan_for):
    outcome = plan_for(QWEN3, assume=["vllm==0.10.2"], environ=UNREAD)

    assert outcome.state == "unknown"
    assert "cannot be decided" in outcome.warnings[0]


def test_a_secret_is_never_read_and_never_shown(plan_for):
    outcome = plan_for(QWEN3, environ={"VLLM_API_KEY": "hunter2", **UNREAD})

    assert "hunter2" not in outcome.plan.to_json()
    assert "VLLM_API_KEY" not in outcome.plan.to_json()


@pytest.mark.parametrize("switch", ["unread-environment", "environment"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(QWEN3, environ=UNREAD, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.warnings == []
