"""A running model on vLLM's CPU platform takes weights that a trainer loads into it."""

from __future__ import annotations

import pytest

CPU = "platform==cpu"


@pytest.mark.parametrize("model", ["qwen3", {"model_type": "qwen3_moe", "num_experts": 8}], ids=str)
def test_a_rollout_on_the_cpu_platform_is_patched(plan_for, model):
    outcome = plan_for(model, assume=[CPU])

    assert outcome.patched == ["BaseModelLoader.load_model"]
    assert outcome.refusals == []


@pytest.mark.parametrize("purpose", ["eval", "serve"])
def test_engines_that_no_trainer_updates_are_left_alone(plan_for, purpose):
    assert plan_for("qwen3", {"purpose": purpose}, assume=[CPU]).patched == []


def test_gpus_are_left_alone(plan_for):
    assert plan_for("qwen3", assume=["platform==cuda"]).state == "not_matched"


@pytest.mark.parametrize(("version", "state"), [("0.15.1", "dormant"), ("0.16.0", "active")])
def test_it_begins_with_layerwise_reload(plan_for, version, state):
    assert plan_for("qwen3", assume=[CPU, f"vllm=={version}"]).state == state
