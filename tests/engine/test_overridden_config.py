"""What vLLM makes of ``config.json`` and ``hf_overrides``; no engine starts."""

from __future__ import annotations

import copy

from quirks_core.facts.context import ModelFacts, RunContext


def test_the_facts_of_a_model_are_what_vllm_loads(shared_lab):
    from vllm.config import ModelConfig

    from quirks_plugins.model_config.evidence import edited

    model = str(edited(shared_lab, "gpt_oss", "overridden", {"quantization_config": {"quant_method": "mxfp4"}}))
    overrides = {
        "quantization_config": {},
        "sliding_window": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5.0},
    }
    loaded = ModelConfig(model, hf_overrides=copy.deepcopy(overrides))  # vLLM writes into them
    run = RunContext(model=ModelFacts.read(model), settings={"engine.hf_overrides": overrides})

    assert run.fact("model.is_quantized") is (loaded.quantization is not None) is False
    assert loaded.hf_config.quantization_config["quant_method"] == ""  # why gpt_oss.py finds no method, and no KeyError
    for key in ("sliding_window", "rope_parameters"):
        assert run.fact(f"model.config.{key}") == getattr(loaded.hf_config, key)
