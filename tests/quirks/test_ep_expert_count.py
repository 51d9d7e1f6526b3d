"""The ranks that share the experts have equally many."""

from __future__ import annotations

import pytest


def moe(experts: int) -> dict[str, object]:
    """The configuration of a mixture."""
    return {"model_type": "qwen3_moe", "num_experts": experts}


@pytest.mark.parametrize(
    ("experts", "engine", "parallel"),
    [
        (8, {"data_parallel_size": 3, "enable_expert_parallel": True}, {}),
        (8, {"tensor_parallel_size": 3, "enable_expert_parallel": True}, {}),
        (6, {"data_parallel_size": 2, "tensor_parallel_size": 2}, {"expert_parallel_size": 4}),
        (6, {"data_parallel_size": 2, "tensor_parallel_size": 2}, {"expert_parallel_size": 4, "dp_strategy": "engine"}),
        (
            9,
            {"data_parallel_size": 3, "tensor_parallel_size": 2, "enable_expert_parallel": True},
            {"dp_strategy": "independent"},
        ),
    ],
    ids=["DP", "TP", "DP x TP", "one engine", "independent"],
)
def test_experts_that_cannot_be_shared_evenly_are_refused(plan_for, experts, engine, parallel):
    (refusal,) = plan_for(moe(experts), {"engine": engine, "parallel": parallel}).refusals

    assert "equally many" in refusal.reason
    assert "engine.data_parallel_size" in refusal.remedy
    assert "--disable ep-expert-count" in refusal.switch


@pytest.mark.parametrize(
    ("experts", "engine", "parallel"),
    [
        (8, {"data_parallel_size": 2, "tensor_parallel_size": 2, "enable_expert_parallel": True}, {}),
        (6, {"data_parallel_size": 4, "tensor_parallel_size": 2}, {"expert_parallel_size": 2}),
        (6, {"data_parallel_size": 4, "tensor_parallel_size": 1}, {}),
        (6, {"tensor_parallel_size": 4}, {}),
    ],
    ids=["even", "even within TP", "no expert parallelism", "sliced experts"],
)
def test_experts_that_are_shared_evenly_or_not_at_all_pass(plan_for, experts, engine, parallel):
    assert plan_for(moe(experts), {"engine": engine, "parallel": parallel}).refusals == []


def test_a_mixture_that_does_not_say_its_number_of_experts_is_warned_of(plan_for):
    outcome = plan_for({"model_type": "acme_moe"}, {"engine": {"tensor_parallel_size": 3, "enable_expert_parallel": True}})

    assert outcome.state == "unknown"
    assert "model.num_experts" in outcome.warnings[0]
