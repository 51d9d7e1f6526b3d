"""The trainer's attention follows from context parallelism and sequence packing."""

from __future__ import annotations

import pytest

QWEN3 = {"model_type": "qwen3"}
CP = {"context_parallel_size": 2}
PACKING = {"sequence_packing": True}

#: The two settings that decide, each with the attention that it needs and one that contradicts it.
cases = pytest.mark.parametrize(
    ("train", "needed", "contrary"),
    [(CP, "sdpa", "flash_attention_2"), (PACKING, "flash_attention_2", "sdpa")],
    ids=["context parallelism", "packing"],
)


@cases
def test_attention_follows(plan_for, train, needed, contrary):
    outcome = plan_for(QWEN3, {"train": train})

    assert outcome.changes == {"train.attn_implementation": needed}
    assert outcome.plan.value("train.attn_implementation") != contrary


@cases
def test_the_same_value_typed_is_fine(plan_for, train, needed, contrary):
    outcome = plan_for(QWEN3, {"train": {**train, "attn_implementation": needed}})

    assert outcome.adjustments["train.attn_implementation"].status == "already_set"
    assert contrary not in str(outcome.refusals)


@cases
@pytest.mark.parametrize("eager", [False, True])
def test_a_contradicting_explicit_value_is_refused_with_remedy_and_switch(plan_for, train, needed, contrary, eager):
    typed = "eager" if eager else contrary

    outcome = plan_for(QWEN3, {"train": {**train, "attn_implementation": typed}})

    (refusal,) = outcome.refusals
    assert f"must be {needed!r}, but {typed!r} was set explicitly" in refusal.reason
    assert f"set it to {needed!r}" in refusal.remedy
    assert "--disable cp-attention-implementation" in refusal.switch


def test_context_parallelism_decides_where_both_are_on(plan_for):
    outcome = plan_for(QWEN3, {"train": {**CP, **PACKING}}, disable=["cp-sequence-packing"])

    assert outcome.changes == {"train.attn_implementation": "sdpa"}


@pytest.mark.parametrize("train", [{}, {**CP, "backend": "megatron"}, {**PACKING, "backend": "megatron"}])
def test_without_either_or_on_megatron_the_trainer_chooses(plan_for, train):
    outcome = plan_for(QWEN3, {"train": train})

    assert outcome.state == "not_matched"
    assert outcome.plan.value("train.attn_implementation") is None


@pytest.mark.parametrize("switch", ["cp-attention-implementation", "attention"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(QWEN3, {"train": {**CP, "attn_implementation": "eager"}}, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.refusals == ()
