"""Context parallelism shards the sequence before media features are in it."""

from __future__ import annotations

import pytest

CP = {"train": {"context_parallel_size": 2}}
VLM = {"model_type": "qwen2_5_vl", "vision_config": {"depth": 2}}


@pytest.mark.parametrize("media", ["vision_config", "audio_config"])
def test_a_multimodal_model_is_refused_with_reason_remedy_and_switch(plan_for, media):
    outcome = plan_for({"model_type": "some_vlm", media: {"depth": 2}}, CP)

    (refusal,) = outcome.refusals
    assert "image and audio features" in refusal.reason
    assert "train.context_parallel_size: 1" in refusal.remedy
    assert "--disable cp-vlm" in refusal.switch


@pytest.mark.parametrize(
    ("config", "train"),
    [
        (VLM, {"context_parallel_size": 1}),
        (VLM, {"context_parallel_size": 2, "backend": "megatron"}),
        ({"model_type": "qwen3"}, {"context_parallel_size": 2}),
        ({"model_type": "gemma3_text", "vision_config": None}, {"context_parallel_size": 2}),
    ],
    ids=["no context parallelism", "megatron", "text model", "text-only checkpoint of a multimodal family"],
)
def test_combinations_that_work_pass(plan_for, config, train):
    outcome = plan_for(config, {"train": train})

    assert outcome.state == "not_matched"
    assert outcome.refusals == []


def test_a_multimodal_gemma3_is_refused_for_both_of_its_reasons_at_once(plan_for):
    outcome = plan_for({"model_type": "gemma3", "vision_config": {"depth": 2}}, CP)

    assert {by.id for refusal in outcome.plan.refusals for by in refusal.quirks} == {"cp-gemma3", "cp-vlm"}


@pytest.mark.parametrize("switch", ["cp-vlm", "context_parallel"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(VLM, CP, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.refusals == ()
