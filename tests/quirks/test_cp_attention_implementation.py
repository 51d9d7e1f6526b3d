"""The trainer's attention follows from context parallelism and sequence packing."""

from __future__ import annotations

import pytest

SLOT = "train.attn_implementation"
CP = {"train.context_parallel_size": 2}
PACKING = {"train.sequence_packing": True}


@pytest.mark.parametrize(
    ("train", "needed", "contrary"),
    [(CP, "sdpa", "flash_attention_2"), (PACKING, "flash_attention_2", "sdpa"), (CP | PACKING, "sdpa", "eager")],
    ids=["context parallelism", "packing", "context parallelism decides where both are on"],
)
def test_attention_follows_and_a_contrary_value_is_refused(plan_for, train, needed, contrary):
    assert plan_for("qwen3", train).changes == {SLOT: needed}
    assert plan_for("qwen3", train | {SLOT: needed}).statuses == {SLOT: "already_set"}
    for typed in (contrary, "eager"):
        (refusal,) = plan_for("qwen3", train | {SLOT: typed}).refusals
        assert f"must be {needed!r}, but {typed!r} was set explicitly" in refusal.reason
    assert plan_for("qwen3", train | {"train.backend": "megatron"}).state == "not_matched"
