"""vLLM's flag follows the expert-parallel size."""

from __future__ import annotations

import pytest

FLAG = "engine.enable_expert_parallel"
MOE = {"model_type": "qwen3_moe", "num_experts": 8}


def test_a_size_above_one_turns_the_flag_on(plan_for):
    outcome = plan_for(MOE, {"engine": {"tensor_parallel_size": 2}, "parallel": {"expert_parallel_size": 2}})

    assert outcome.changes == {FLAG: True}
    assert outcome.plan.refusals == ()


@pytest.mark.parametrize(("size", "flag"), [(2, False), (1, True)])
def test_a_flag_that_was_typed_to_the_contrary_stops_the_run_and_says_both_ways_out(plan_for, size, flag):
    values = {
        "engine": {"tensor_parallel_size": 2, "enable_expert_parallel": flag},
        "parallel": {"expert_parallel_size": size},
    }

    (refusal,) = plan_for(MOE, values).refusals

    assert refusal.kind == "require"
    assert f"engine.enable_expert_parallel: {str(not flag).lower()}" in refusal.remedy
    assert "parallel.expert_parallel_size" in refusal.remedy


@pytest.mark.parametrize(
    ("engine", "size"), [({}, 1), ({"enable_expert_parallel": False}, 1), ({"enable_expert_parallel": True}, 2)]
)
def test_a_flag_that_agrees_stays(plan_for, engine, size):
    values = {"engine": {"tensor_parallel_size": 2, **engine}, "parallel": {"expert_parallel_size": size}}

    outcome = plan_for(MOE, values)

    assert outcome.changes == {}
    assert outcome.plan.refusals == ()


def test_without_a_size_the_flag_is_the_users(plan_for):
    outcome = plan_for(MOE, {"engine": {"tensor_parallel_size": 2, "enable_expert_parallel": True}})

    assert outcome.state == "not_matched"
    assert outcome.plan.value(FLAG) is True
