"""Context parallelism cannot take Gemma-3's attention mask."""

from __future__ import annotations

import pytest

CP = {"train": {"context_parallel_size": 2}}


@pytest.mark.parametrize("model_type", ["gemma3", "gemma3_text"])
def test_gemma3_with_context_parallelism_is_refused_with_reason_remedy_and_switch(plan_for, model_type):
    outcome = plan_for({"model_type": model_type}, CP)

    (refusal,) = outcome.refusals
    assert "SDPA" in refusal.reason
    assert "mask" in refusal.reason
    assert "train.context_parallel_size: 1" in refusal.remedy
    assert "--disable cp-gemma3" in refusal.switch


@pytest.mark.parametrize(
    ("model_type", "train"),
    [
        ("gemma3", {"context_parallel_size": 1}),
        ("gemma3", {"context_parallel_size": 2, "backend": "megatron"}),
        ("gemma2", {"context_parallel_size": 2}),
    ],
    ids=["no context parallelism", "megatron", "another model"],
)
def test_combinations_that_work_pass(plan_for, model_type, train):
    outcome = plan_for({"model_type": model_type}, {"train": train})

    assert outcome.state == "not_matched"
    assert outcome.plan.refusals == ()


@pytest.mark.parametrize("switch", ["cp-gemma3", "context_parallel"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for({"model_type": "gemma3_text"}, CP, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.refusals == ()
