"""The cluster's GPUs hold whole replicas, and all of them."""

from __future__ import annotations

import pytest

QWEN3 = {"model_type": "qwen3"}


def values(nodes: int, gpus: int | None, dp: int, tp: int, pp: int = 1) -> dict[str, object]:
    """A configuration."""
    engine = {"data_parallel_size": dp, "tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    return {"cluster": {"num_nodes": nodes, "gpus_per_node": gpus}, "engine": engine}


@pytest.mark.parametrize(("nodes", "gpus", "dp", "tp", "pp"), [(1, 8, 1, 3, 1), (1, 8, 1, 2, 3), (2, 4, 1, 16, 1)])
def test_gpus_that_do_not_hold_whole_replicas_are_refused(plan_for, nodes, gpus, dp, tp, pp):
    refusals = plan_for(QWEN3, values(nodes, gpus, dp, tp, pp)).refusals

    assert "no multiple of TP x PP" in refusals[0].reason
    assert "cluster.num_nodes" in refusals[0].remedy


@pytest.mark.parametrize(("nodes", "gpus", "dp", "tp", "pp"), [(1, 2, 4, 1, 1), (2, 4, 2, 4, 2)])
def test_more_ranks_than_gpus_are_refused(plan_for, nodes, gpus, dp, tp, pp):
    (refusal,) = plan_for(QWEN3, values(nodes, gpus, dp, tp, pp)).refusals

    assert "fewer GPUs" in refusal.reason
    assert "lower engine.data_parallel_size" in refusal.remedy


@pytest.mark.parametrize(
    ("nodes", "gpus", "dp", "tp", "pp"), [(1, 8, 2, 4, 1), (2, 4, 2, 2, 2), (1, 8, 1, 2, 1), (1, None, 64, 3, 1)]
)
def test_enough_gpus_for_whole_replicas_or_none_named_pass(plan_for, nodes, gpus, dp, tp, pp):
    assert plan_for(QWEN3, values(nodes, gpus, dp, tp, pp)).refusals == []
