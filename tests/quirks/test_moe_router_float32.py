"""DeepSeek's router keeps float32 logits in a rollout on a GPU."""

from __future__ import annotations

import pytest

GPU = ("platform==cuda", "vllm==0.32.0")
ROUTED = {"model_type": "deepseek_v3", "scoring_func": "sigmoid", "topk_method": "noaux_tc"}


@pytest.mark.parametrize(
    ("model", "overrides", "made"),
    [
        (ROUTED, {}, {"moe_router_dtype": "float32"}),
        (ROUTED, {"hidden_size": 64}, {"hidden_size": 64, "moe_router_dtype": "float32"}),
        (ROUTED, {"moe_router_dtype": "bfloat16"}, None),
        (ROUTED | {"moe_router_dtype": "float32"}, {}, None),
        ("glm4_moe", {}, None),
    ],
)
def test_the_key_is_added_unless_somebody_said_otherwise(plan_for, model, overrides, made):
    outcome = plan_for(model, {"engine.hf_overrides": overrides} if overrides else {}, assume=GPU)

    assert outcome.plan.changes.get("engine.hf_overrides") == made


@pytest.mark.parametrize("settings", [{"engine.dtype": "float32"}, {"purpose": "serve"}], ids=str)
def test_a_float32_engine_and_a_server_are_left_alone(plan_for, settings):
    assert plan_for(ROUTED, settings, assume=GPU).state == "not_matched"
