"""A dense model has no experts to share."""

from __future__ import annotations

import pytest

DENSE = {"model_type": "qwen3"}


@pytest.mark.parametrize(
    "values",
    [{"engine": {"enable_expert_parallel": True}}, {"parallel": {"expert_parallel_size": 2}}],
    ids=["the flag", "a size"],
)
def test_expert_parallelism_of_a_dense_model_is_refused(plan_for, values):
    (refusal,) = plan_for(DENSE, values).refusals

    assert "it has no experts" in refusal.reason
    assert "engine.enable_expert_parallel: false" in refusal.remedy
    assert "--disable ep-dense" in refusal.switch


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (DENSE, {}),
        (DENSE, {"engine": {"tensor_parallel_size": 2}, "parallel": {"expert_parallel_size": 1}}),
        ({"model_type": "qwen3_moe", "num_experts": 8}, {"engine": {"enable_expert_parallel": True}}),
        ({"model_type": "acme", "text_config": {"n_routed_experts": 8}}, {"engine": {"enable_expert_parallel": True}}),
    ],
)
def test_dense_models_without_and_mixtures_with_expert_parallelism_pass(plan_for, model, values):
    assert plan_for(model, values).refusals == []
