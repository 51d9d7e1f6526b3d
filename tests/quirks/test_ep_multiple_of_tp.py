"""An expert-parallel group is made of whole replicas."""

from __future__ import annotations

import pytest

MOE = {"model_type": "qwen3_moe", "num_experts": 8}


@pytest.mark.parametrize(("tp", "ep"), [(4, 6), (4, 2), (2, 3)])
def test_a_size_that_splits_replicas_is_refused(plan_for, tp, ep):
    outcome = plan_for(MOE, {"engine": {"tensor_parallel_size": tp}, "parallel": {"expert_parallel_size": ep}})

    (refusal,) = outcome.refusals
    assert "a multiple of TP" in refusal.reason
    assert "parallel.expert_parallel_size to a multiple of engine.tensor_parallel_size" in refusal.remedy
    assert f"not a multiple of engine.tensor_parallel_size = {tp}, got {ep}" in str(outcome.verdict.trace[-1])


@pytest.mark.parametrize(("tp", "ep"), [(4, 8), (4, 4), (1, 3), (4, 1)])
def test_a_size_of_whole_replicas_passes(plan_for, tp, ep):
    values = {"engine": {"tensor_parallel_size": tp}, "parallel": {"expert_parallel_size": ep}}

    assert plan_for(MOE, values).refusals == []
