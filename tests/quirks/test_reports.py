"""Public reports as inputs: a model's ``config.json``, cut to the keys that matter, and what a plan must say of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

_LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}
_MODELOPT = {
    "producer": {"name": "modelopt", "version": "0.23.0"},
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
}
_BLOCK_FP8 = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "block"}}},
}
_FP8_ADVICE = {"fp8-checkpoint-refit", "quantized-rollout"}
_MOE_RULES = {"ep-alone", "router-bias-buffers", "routed-experts-capture"}


def _composite(model_type: str, architecture: str, **parts: Any) -> dict[str, Any]:
    return {"model_type": model_type, "architectures": [architecture], **parts}


_GEMMA4 = _composite("gemma4", "Gemma4ForConditionalGeneration", vision_config={"model_type": "gemma4_vision"})
_KIMI = _composite(
    "kimi_k25",
    "KimiK25ForConditionalGeneration",
    text_config={"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], "n_routed_experts": 384},
    vision_config={"model_type": "kimi_k25_vision"},
)
_NEMOTRON_H = _composite("nemotron_h", "NemotronHForCausalLM", hybrid_override_pattern="M-M-M*-M-")
_OMNI = _composite(
    "qwen3_omni_moe",
    "Qwen3OmniMoeForConditionalGeneration",
    thinker_config={"text_config": {"model_type": "qwen3_omni_moe_text", "num_experts": 128, "num_attention_heads": 32}},
)


@pytest.fixture
def planned(tmp_path, plan_for):
    """Plans a rollout of a model on vLLM 0.32.0 for CUDA, from dummy weights."""

    def plan(config, beside=None):
        if beside is not None:
            (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
        return plan_for(config, {"engine.load_format": "dummy"}, assume=("vllm==0.32.0", "platform==cuda"))

    return plan


_DEEPSEEK_V4 = _composite("acme", "DeepseekV4ForCausalLM")


@pytest.mark.parametrize(
    ("config", "beside", "active", "inactive"),
    [
        pytest.param({**_GEMMA4, "quantization_config": _BLOCK_FP8}, None, _FP8_ADVICE, (), id="32"),
        pytest.param(_LLAMA, _MODELOPT, {*_FP8_ADVICE, "fp8-kv-rollout"}, (), id="33-file"),
        pytest.param({**_LLAMA, "quantization_config": {"quant_method": "fp8"}}, None, _FP8_ADVICE, (), id="33-fp8"),
        pytest.param(_KIMI, None, {"router-bias-buffers"}, (), id="38"),
        pytest.param(_DEEPSEEK_V4, None, {"router-bias-buffers", "derived-weights-refit"}, (), id="F10"),
        pytest.param(_NEMOTRON_H, None, (), _MOE_RULES, id="34"),
        pytest.param(_GEMMA4, None, (), {"device-normalization-dummy"}, id="F5"),
        pytest.param(_LLAMA, None, (), {*_FP8_ADVICE, "fp8-kv-rollout"}, id="33-bfloat16"),
    ],
)
def test_what_users_saw_is_answered_and_all_else_left_alone(planned, config, beside, active, inactive):
    states = {verdict.id: verdict.state for verdict in planned(config, beside).verdicts}

    assert {states[quirk] for quirk in active} <= {"active"}
    assert {states[quirk] for quirk in inactive} <= {"not_matched", "dormant"}


@pytest.mark.parametrize(
    ("config", "is_moe"),
    [
        pytest.param(_OMNI, True, id="36"),
        pytest.param(_composite("phi4mm", "Phi4MMForCausalLM", embd_layer={"image_embd_layer": {}}), False, id="36-phi4"),
        pytest.param(
            _composite("granite_speech", "GraniteSpeechForConditionalGeneration", encoder_config={}), False, id="36-speech"
        ),
    ],
)
def test_a_model_is_what_vllm_builds(planned, config, is_moe):
    context = planned(config).context

    assert (context.fact("model.is_multimodal"), context.fact("model.is_moe")) == (True, is_moe)
