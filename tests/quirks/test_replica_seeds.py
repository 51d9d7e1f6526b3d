"""Every engine of a group samples from a seed of its own."""

from __future__ import annotations

import pytest

QWEN3 = {"model_type": "qwen3"}
MOE = {"model_type": "qwen3_moe", "num_experts": 8}


def replicas(strategy=None, **values):
    """A configuration with two data-parallel ranks."""
    return {"engine": {"data_parallel_size": 2}, "parallel": {"dp_strategy": strategy, **values}}


@pytest.mark.parametrize("purpose", ["rollout", "eval", "serve"])
@pytest.mark.parametrize("strategy", [None, "independent", "actors"])
def test_engines_of_a_group_get_distinct_seeds(plan_for, strategy, purpose):
    outcome = plan_for(MOE, {**replicas(strategy), "purpose": purpose})

    assert outcome.changes == {"parallel.distinct_seeds": True}


@pytest.mark.parametrize(
    "values", [{}, {"engine": {"data_parallel_size": 1}}, replicas("engine")], ids=["open", "one rank", "one engine"]
)
def test_one_engine_has_no_other_to_differ_from(plan_for, values):
    outcome = plan_for(QWEN3, values)

    assert outcome.state == "not_matched"
    assert outcome.plan.value("parallel.distinct_seeds") is None


def test_who_wants_equal_replicas_gets_them(plan_for):
    outcome = plan_for(QWEN3, replicas(distinct_seeds=False))

    assert outcome.adjustments["parallel.distinct_seeds"].status == "kept_user"
    assert outcome.plan.value("parallel.distinct_seeds") is False


@pytest.mark.parametrize("switch", ["replica-seeds", "runtime"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(QWEN3, replicas(), disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.value("parallel.distinct_seeds") is None
