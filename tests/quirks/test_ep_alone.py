"""Expert parallelism over one rank is none, and the plan says so."""

from __future__ import annotations

import pytest

MOE = {"model_type": "qwen3_moe", "num_experts": 8}


@pytest.mark.parametrize(
    "values",
    [
        {"engine": {"enable_expert_parallel": True}},
        {"engine": {"enable_expert_parallel": True, "pipeline_parallel_size": 2}},
        {"engine": {"enable_expert_parallel": True, "data_parallel_size": 2}, "parallel": {"dp_strategy": "independent"}},
    ],
    ids=["one rank", "pipeline stages share no experts", "engines that share nothing"],
)
def test_a_flag_without_effect_is_told_and_not_refused(plan_for, values):
    outcome = plan_for(MOE, values)

    assert "engine.enable_expert_parallel has no effect" in outcome.warnings[0]
    assert outcome.plan.refusals == ()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"engine": {"enable_expert_parallel": True, "tensor_parallel_size": 2}},
        {"engine": {"enable_expert_parallel": True, "data_parallel_size": 2}},
    ],
    ids=["no flag", "TP", "DP"],
)
def test_a_flag_with_effect_is_not(plan_for, values):
    assert plan_for(MOE, values).warnings == []
