"""Context parallelism and sequence parallelism both shard the sequence."""

from __future__ import annotations

import pytest

QWEN3 = {"model_type": "qwen3"}
BOTH = {"train": {"context_parallel_size": 2, "sequence_parallel": True, "tensor_parallel_size": 2}}


def test_sequence_parallelism_over_several_ranks_is_refused_with_reason_remedy_and_switch(plan_for):
    outcome = plan_for(QWEN3, BOTH)

    (refusal,) = outcome.refusals
    assert "tensor-parallel ranks" in refusal.reason
    assert "train.sequence_parallel: false" in refusal.remedy
    assert "--disable cp-sequence-parallel" in refusal.switch


@pytest.mark.parametrize(
    "change",
    [{"tensor_parallel_size": 1}, {"sequence_parallel": False}, {"context_parallel_size": 1}, {"backend": "megatron"}],
    ids=["one tensor-parallel rank", "no sequence parallelism", "no context parallelism", "megatron"],
)
def test_combinations_that_work_pass(plan_for, change):
    outcome = plan_for(QWEN3, {"train": {**BOTH["train"], **change}})

    assert outcome.state == "not_matched"
    assert outcome.plan.refusals == ()


@pytest.mark.parametrize("switch", ["cp-sequence-parallel", "context_parallel"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(QWEN3, BOTH, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.refusals == ()
