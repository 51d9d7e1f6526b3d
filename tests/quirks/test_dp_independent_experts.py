"""Engines that share nothing never share experts."""

from __future__ import annotations

import pytest

MOE = {"model_type": "qwen3_moe", "num_experts": 8}


def values(dp: int, tp: int, ep: int, strategy: str | None) -> dict[str, object]:
    """A configuration."""
    engine = {"data_parallel_size": dp, "tensor_parallel_size": tp}
    return {"engine": engine, "parallel": {"dp_strategy": strategy, "expert_parallel_size": ep}}


@pytest.mark.parametrize(("dp", "tp", "ep"), [(2, 1, 2), (2, 2, 4), (4, 1, 2)])
def test_experts_beyond_tp_are_refused_for_engines_that_share_nothing(plan_for, dp, tp, ep):
    (refusal,) = plan_for(MOE, values(dp, tp, ep, "independent")).refusals

    assert "EP rank 0 of 1" in refusal.reason
    assert "parallel.dp_strategy: actors" in refusal.remedy
    assert "--disable dp-independent-experts" in refusal.switch


def test_the_plan_explains_with_both_numbers(plan_for):
    outcome = plan_for(MOE, values(2, 2, 4, "independent"))

    assert "wanted > engine.tensor_parallel_size = 2, got 4" in str(outcome.verdict.trace[-1])


@pytest.mark.parametrize(
    ("dp", "tp", "ep", "strategy"), [(2, 2, 2, "independent"), (2, 1, 2, "actors"), (2, 1, 2, "engine"), (2, 1, 2, None)]
)
def test_experts_within_tp_or_in_one_group_pass(plan_for, dp, tp, ep, strategy):
    assert plan_for(MOE, values(dp, tp, ep, strategy)).refusals == []
