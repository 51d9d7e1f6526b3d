"""Public reports as inputs: a model's ``config.json``, cut to the keys that matter, and what a plan must say of it."""

from __future__ import annotations


def planned(plan_for, config):
    """Plans a rollout on vLLM 0.32.0 for CUDA, from dummy weights."""
    return plan_for(config, {"engine.load_format": "dummy"}, assume=("vllm==0.32.0", "platform==cuda"))


def test_a_model_with_kimi_k2_inside_has_its_router_s_bias(plan_for):
    text = {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], "n_routed_experts": 384}

    plan = planned(
        plan_for, {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"], "text_config": text}
    )

    assert "router-bias-buffers" in {verdict.id for verdict in plan.active}


def test_an_omni_model_has_the_experts_of_its_thinker(plan_for):
    thinker = {"text_config": {"model_type": "qwen3_omni_moe_text", "num_experts": 128}}

    plan = planned(plan_for, {"model_type": "qwen3_omni_moe", "thinker_config": thinker})

    assert plan.context.fact("model.num_experts") == 128
