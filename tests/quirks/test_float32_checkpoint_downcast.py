"""A rollout of a float32 checkpoint stays in float32."""

from __future__ import annotations

import pytest

FLOAT32 = {"model_type": "qwen3", "dtype": "float32"}


@pytest.mark.parametrize(
    ("model", "state"),
    [
        (FLOAT32, "active"),
        ({"model_type": "qwen3", "torch_dtype": "float32"}, "active"),
        ({"model_type": "gemma3", "text_config": {"torch_dtype": "float32"}}, "active"),
        ({"model_type": "qwen3", "dtype": None, "torch_dtype": "float32"}, "active"),
        ({"model_type": "qwen3", "dtype": "bfloat16", "torch_dtype": "float32"}, "not_matched"),  # the newer name counts
        ({"model_type": "gemma3", "dtype": "bfloat16", "text_config": {"dtype": "float32"}}, "not_matched"),
        ({"model_type": "qwen3", "dtype": "float16"}, "not_matched"),
        ({**FLOAT32, "quantization_config": {"quant_method": "fp8"}}, "not_matched"),
        ("qwen3", "not_matched"),  # vLLM looks into the weight files then
    ],
    ids=str,
)
def test_it_reads_the_dtype_where_vllm_does(plan_for, model, state):
    assert plan_for(model).state == state


@pytest.mark.parametrize("settings", [{}, {"train.dtype": "float32"}, {"engine.dtype": "auto"}], ids=str)
def test_a_dtype_that_is_left_open_becomes_float32(plan_for, settings):
    assert plan_for(FLOAT32, settings).changes == {"engine.dtype": "float32"}


def test_a_dtype_that_the_user_typed_stays(plan_for):
    outcome = plan_for(FLOAT32, {"engine.dtype": "bfloat16"})

    assert outcome.statuses == {"engine.dtype": "kept_user"}
    assert outcome.refusals == []


def test_a_trainer_in_another_dtype_needs_no_float32_engine(plan_for):
    assert plan_for(FLOAT32, {"train.dtype": "bfloat16"}).state == "not_matched"


def test_a_server_is_left_alone(plan_for):
    assert plan_for(FLOAT32, {"purpose": "serve"}).state == "not_matched"
