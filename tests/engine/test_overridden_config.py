"""What vLLM makes of ``config.json`` and ``hf_overrides``; no engine starts."""

from __future__ import annotations

import copy

from quirks_core.facts.context import RunContext
from quirks_core.facts.model import ModelFacts


def test_the_facts_of_a_model_are_what_vllm_loads(lab):
    from vllm.config import ModelConfig

    from quirks_plugins.model_config.evidence import edited

    model = str(edited(lab, "gpt_oss", "overridden", {"quantization_config": {"quant_method": "mxfp4"}}))
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


#: vLLM's class of Cosmos-3 gives its dense language model eight experts, the default of the class that it inherits from.
_FILLED_IN = {"cosmos3_edge"}
#: Layers of one model have heads of several widths, or none that attends.
_NO_ONE_WIDTH = {"diffusion_gemma", "gemma4", "gemma4_text", "gemma4_unified", "mamba2"}


def test_facts_of_every_model_are_what_vllm_reads(tmp_path):
    import vllm.config  # noqa: F401 - the modules below import each other
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto
    from vllm.model_executor.models.registry import _VLLM_MODELS
    from vllm.transformers_utils.config import get_config, get_hf_text_config
    from vllm.transformers_utils.model_arch_config_convertor import MODEL_ARCH_CONFIG_CONVERTORS, ModelArchConfigConvertorBase

    kinds = {**modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
    kinds.pop("deepseek_v4")  # vLLM 0.32 refuses what transformers 5.19 writes
    wrong, count = {}, 0
    for kind, name in kinds.items():
        if name not in _VLLM_MODELS:
            continue
        written, folder = AutoConfig.for_model(kind), str(tmp_path / kind)
        written.architectures = [name]
        written.save_pretrained(folder)
        run, config = RunContext(model=ModelFacts.read(folder)), get_config(folder, trust_remote_code=False)
        read = MODEL_ARCH_CONFIG_CONVERTORS.get(config.model_type, ModelArchConfigConvertorBase)(
            config, get_hf_text_config(config)
        )
        experts = 0 if kind in _FILLED_IN else read.get_num_experts()
        wanted = {
            "model.num_experts": experts if experts > 1 else None,
            "model.is_moe": experts > 1,
            "model.is_quantized": read.get_quantization_config() is not None,
        }
        if kind not in _NO_ONE_WIDTH and not read.is_deepseek_mla():
            wanted["model.head_size"] = read.get_head_size() or None
        found = {fact: run.fact(fact) for fact in wanted}
        types, count = run.loaded.model_types, count + 1
        if found != wanted or types[0] != config.model_type:
            wrong[kind] = (found, wanted, types)

    assert count > 100
    assert wrong == {}


def test_a_model_is_multimodal_if_vllm_lists_its_architecture_so():
    from vllm.model_executor.models import registry

    media = {*registry._MULTIMODAL_MODELS, "InklingForConditionalGeneration"}
    names = media | set(registry._TEXT_GENERATION_MODELS)

    found = {name for name in names if ModelFacts(name="m", path="m", config={"architectures": [name]}).is_multimodal}

    assert found == media
