"""An engine's ranks fit the GPUs of one node."""

from __future__ import annotations

import pytest

MOE = {"model_type": "qwen3_moe", "num_experts": 8}


def values(dp: int, tp: int, strategy: str | None, gpus: int | None = 4, pp: int = 1, **engine: object) -> dict[str, object]:
    """A configuration of four nodes."""
    return {
        "cluster": {"num_nodes": 4, "gpus_per_node": gpus},
        "engine": {"data_parallel_size": dp, "tensor_parallel_size": tp, "pipeline_parallel_size": pp, **engine},
        "parallel": {"dp_strategy": strategy},
    }


@pytest.mark.parametrize("strategy", ["actors", "engine", "independent", None])
@pytest.mark.parametrize(("tp", "pp"), [(8, 1), (4, 2)])
def test_a_replica_larger_than_a_node_is_refused_once(plan_for, strategy, tp, pp):
    (refusal,) = plan_for(MOE, values(2, tp, strategy, pp=pp)).refusals

    assert "TP x PP GPUs of one node" in refusal.reason
    assert "cluster.gpus_per_node" in refusal.remedy


@pytest.mark.parametrize(
    "run",
    [values(4, 2, "engine"), values(8, 1, None, async_engine=False, enable_expert_parallel=True)],
    ids=["typed", "chosen for the synchronous engine"],
)
def test_one_engine_with_more_ranks_than_a_node_is_refused_with_strategies_that_spread(plan_for, run):
    (refusal,) = plan_for(MOE, run).refusals

    assert "owns all data-parallel ranks" in refusal.reason
    assert "parallel.dp_strategy: actors" in refusal.remedy


@pytest.mark.parametrize(
    "run", [values(4, 2, "actors"), values(4, 2, "independent"), values(2, 2, "engine"), values(8, 8, "engine", gpus=None)]
)
def test_engines_that_fit_and_nodes_without_a_number_of_gpus_pass(plan_for, run):
    assert plan_for(MOE, run).refusals == []
