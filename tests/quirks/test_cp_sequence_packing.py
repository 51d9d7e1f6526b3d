"""Context parallelism needs SDPA, sequence packing needs flash-attention-2."""

from __future__ import annotations

import pytest

QWEN3 = {"model_type": "qwen3"}
BOTH = {"train": {"context_parallel_size": 2, "sequence_packing": True}}


def test_packing_with_context_parallelism_is_refused_with_reason_remedy_and_switch(plan_for):
    outcome = plan_for(QWEN3, BOTH)

    (refusal,) = outcome.refusals
    assert "SDPA" in refusal.reason
    assert "flash-attention-2" in refusal.reason
    assert "train.sequence_packing: false" in refusal.remedy
    assert "--disable cp-sequence-packing" in refusal.switch


@pytest.mark.parametrize(
    "train",
    [
        {"context_parallel_size": 2},
        {"sequence_packing": True},
        {"context_parallel_size": 2, "sequence_packing": True, "backend": "megatron"},
    ],
    ids=["context parallelism alone", "packing alone", "megatron"],
)
def test_combinations_that_work_pass(plan_for, train):
    outcome = plan_for(QWEN3, {"train": train})

    assert outcome.state == "not_matched"
    assert outcome.plan.refusals == ()


@pytest.mark.parametrize("switch", ["cp-sequence-packing", "context_parallel"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(QWEN3, BOTH, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.refusals == ()
