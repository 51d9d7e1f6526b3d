"""Replicas that share experts form one group, and replicas that share nothing do not."""

from __future__ import annotations

import pytest

SLOT = "parallel.dp_strategy"
DENSE = {"model_type": "qwen3"}
MOE = {"model_type": "qwen3_moe", "num_experts": 8}


@pytest.mark.parametrize(
    ("model", "engine", "parallel", "strategy", "words"),
    [
        (DENSE, {}, {}, "independent", "need no lock-step"),
        (MOE, {}, {}, "independent", "need no lock-step"),
        (MOE, {"tensor_parallel_size": 2}, {"expert_parallel_size": 2}, "independent", "EP within TP"),
        (MOE, {"enable_expert_parallel": True}, {}, "actors", "one vLLM data-parallel group"),
        (MOE, {}, {"expert_parallel_size": 2}, "actors", "one vLLM data-parallel group"),
        (MOE, {"async_engine": False}, {"expert_parallel_size": 2}, "engine", "one engine must own its ranks"),
    ],
    ids=["dense", "no EP", "EP within TP", "EP by the flag", "EP beyond TP", "synchronous"],
)
def test_an_open_strategy_is_chosen_from_what_is_shared_and_the_plan_says_why(
    plan_for, model, engine, parallel, strategy, words
):
    outcome = plan_for(model, {"engine": {"data_parallel_size": 2, **engine}, "parallel": parallel})

    assert outcome.changes == {SLOT: strategy}
    assert words in outcome.adjustments[SLOT].quirks[0].reason
    assert outcome.plan.refusals == ()


@pytest.mark.parametrize("strategy", ["engine", "actors"])
def test_a_strategy_that_the_user_typed_stays(plan_for, strategy):
    outcome = plan_for(MOE, {"engine": {"data_parallel_size": 2}, "parallel": {"dp_strategy": strategy}})

    assert outcome.plan.value(SLOT) == strategy
    assert outcome.adjustments[SLOT].status == "kept_user"


def test_one_replica_needs_no_strategy(plan_for):
    outcome = plan_for(MOE, {"engine": {"tensor_parallel_size": 4, "enable_expert_parallel": True}})

    assert outcome.state == "not_matched"
    assert outcome.plan.value(SLOT) is None
