"""Runs that others publish and that work: no quirk refuses one of them.

A run is a model's ``config.json``, cut to the keys that quirks read, and settings of a published recipe, on releases of vLLM
that its repository is for. Read at vllm-project/recipes 8959cf64, NVIDIA-NeMo/RL 7ea279ab (vLLM 0.25.1) and verl-project/verl
1dda039b (vLLM 0.18 and newer).
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from quirks_core.configuration.config import GenerationConfig
from quirks_core.facts.context import RunContext
from quirks_core.facts.trainers import TRAINERS
from quirks_core.plan.switches import Switches

_YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
_BLOCK_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
_DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "n_routed_experts": 256,
    "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "max_position_embeddings": 163840, "rope_theta": 10000,
    "rope_scaling": _YARN, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "num_nextn_predict_layers": 1,
}  # fmt: skip
_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 40960, "rope_theta": 1000000, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
_QWEN3_MOE = {**_QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 128}
_GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {"model_type": "gemma3_text", "num_attention_heads": 32, "num_key_value_heads": 16, "sliding_window": 1024},
    "vision_config": {"model_type": "siglip_vision_model"},
}  # fmt: skip
_GEMMA4 = {
    "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "dtype": "bfloat16",
    "text_config": {"model_type": "gemma4_text", "num_experts": 128, "num_attention_heads": 16, "num_key_value_heads": 8},
    "vision_config": {"model_type": "gemma4_vision"},
}  # fmt: skip
_NANO = {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "n_routed_experts": 128, "num_attention_heads": 32,
    "num_key_value_heads": 2, "hybrid_override_pattern": "MEMEM*EMEMEM*E", "torch_dtype": "bfloat16",
    "tie_word_embeddings": False, "max_position_embeddings": 262144,
}  # fmt: skip
_CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek-ai/DeepSeek-R1-0528": {**_DEEPSEEK_V3, "quantization_config": _BLOCK_FP8},
    "deepseek-ai/DeepSeek-V3 in bfloat16": _DEEPSEEK_V3,
    "moonshotai/Moonlight-16B-A3B-Instruct": {
        **{name: value for name, value in _DEEPSEEK_V3.items() if name not in ("rope_scaling", "num_nextn_predict_layers")},
        "n_routed_experts": 64, "num_attention_heads": 16, "max_position_embeddings": 8192, "rope_theta": 50000,
    },
    "openai/gpt-oss-120b": {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 128, "num_attention_heads": 64,
        "num_key_value_heads": 8, "sliding_window": 128, "max_position_embeddings": 131072, "tie_word_embeddings": False,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    },
    "Qwen/Qwen3-8B": _QWEN3,
    "Qwen/Qwen3-30B-A3B": _QWEN3_MOE,
    "Qwen/Qwen3-235B-A22B-FP8": {**_QWEN3_MOE, "num_attention_heads": 64, "quantization_config": _BLOCK_FP8},
    "Qwen/Qwen2.5-7B": {**_QWEN3, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_attention_heads": 28,
                        "num_key_value_heads": 4, "max_position_embeddings": 131072},
    "Qwen/Qwen2.5-VL-7B-Instruct": {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "num_attention_heads": 28,
        "num_key_value_heads": 4, "max_position_embeddings": 128000, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vision_config": {"model_type": "qwen2_5_vl"},
    },
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "num_experts": 512, "num_attention_heads": 16,
        "num_key_value_heads": 2, "max_position_embeddings": 262144, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    },
    "meta-llama/Llama-3.1-8B-Instruct": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
    },
    "google/gemma-3-27b-it": _GEMMA3,
    "google/gemma-4-26B-A4B-it": _GEMMA4,
    "zai-org/GLM-4.5-Air-FP8": {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "n_routed_experts": 128, "num_attention_heads": 96,
        "num_key_value_heads": 8, "tie_word_embeddings": False, "max_position_embeddings": 131072,
        "quantization_config": _BLOCK_FP8,
    },
    "microsoft/Phi-4-mini-instruct": {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "num_attention_heads": 24, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "tie_word_embeddings": True,
        "rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}, "torch_dtype": "bfloat16",
    },
    "mistralai/Ministral-3-14B-Instruct-2512": {
        "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "dtype": "bfloat16",
        "text_config": {"model_type": "ministral3", "num_attention_heads": 32, "num_key_value_heads": 8},
        "vision_config": {"model_type": "pixtral"},
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "static"},
    },
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": _NANO,
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": {**_NANO, "n_routed_experts": 512, "num_nextn_predict_layers": 1},
    "LiquidAI/LFM2.5-8B-A1B": {
        "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "num_experts": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "tie_word_embeddings": True, "dtype": "bfloat16",
    },
    "MiniMaxAI/MiniMax-M2.7": {
        "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "num_local_experts": 256,
        "num_attention_heads": 48, "num_key_value_heads": 8, "quantization_config": _BLOCK_FP8, "tie_word_embeddings": False,
    },
}  # fmt: skip


class Run(NamedTuple):
    """A published run.

    Attributes:
        source: The recipe.
        model: The model.
        engine: vLLM's arguments.
        sections: Other settings, by section.
        trainer: Who trains; empty for a server.
        versions: The releases of vLLM that the plan is made for.
    """

    source: str
    model: str
    engine: dict[str, Any] = {}  # noqa: RUF012 - a NamedTuple's default, never changed
    sections: dict[str, Any] = {}  # noqa: RUF012
    trainer: str = ""
    versions: tuple[str, ...] = ("0.26.0", "0.29.0", "0.33.0")


def _nemo(name: str, model: str, **engine: Any) -> Run:
    """A recipe of NeMo RL, which starts from dummy weights, and sleeps beside its trainer."""
    common = {"load_format": "dummy", "enable_sleep_mode": True, "dtype": "bfloat16", "gpu_memory_utilization": 0.6}
    sections = {"train": {"backend": "megatron"}, "cluster": {"num_nodes": 4, "gpus_per_node": 8}}
    return Run(f"NeMo RL {name}", model, {**common, **engine}, sections, "nemo-rl", ("0.25.1",))


def _verl(name: str, model: str, versions: tuple[str, ...] = ("0.18.0", "0.26.0"), **engine: Any) -> Run:
    """An example of verl."""
    common = {"load_format": "dummy", "enable_sleep_mode": True, "dtype": "bfloat16", "enable_chunked_prefill": True}
    return Run(f"verl {name}", model, {**common, **engine}, {}, "verl", versions)


_MISTRAL = {"tokenizer_mode": "mistral", "config_format": "mistral", "load_format": "mistral"}
_RUNS = (
    Run("recipes DeepSeek-V3", "deepseek-ai/DeepSeek-R1-0528", {"tensor_parallel_size": 8, "enable_expert_parallel": True}),
    Run("recipes DeepSeek-V3", "deepseek-ai/DeepSeek-R1-0528", {"data_parallel_size": 8, "enable_expert_parallel": True}),
    Run("recipes GPT-OSS", "openai/gpt-oss-120b"),
    Run("recipes GPT-OSS", "openai/gpt-oss-120b", {"tensor_parallel_size": 8, "kv_cache_dtype": "fp8",
        "async_scheduling": True}),
    Run("recipes Qwen3", "Qwen/Qwen3-235B-A22B-FP8", {"tensor_parallel_size": 8, "enable_expert_parallel": True}),
    Run("recipes Qwen2.5-VL", "Qwen/Qwen2.5-VL-7B-Instruct", {"data_parallel_size": 4, "mm_encoder_tp_mode": "data"}),
    Run("recipes Qwen3-Next", "Qwen/Qwen3-Next-80B-A3B-Instruct", {"tensor_parallel_size": 4}),
    Run("recipes Qwen3-Next", "Qwen/Qwen3-Next-80B-A3B-Instruct", {"tensor_parallel_size": 4, "enable_prefix_caching": False,
        "speculative_config": {"method": "qwen3_next_mtp", "num_speculative_tokens": 2}}),
    Run("recipes Gemma4", "google/gemma-4-26B-A4B-it", {"max_model_len": 32768, "gpu_memory_utilization": 0.9}),
    Run("recipes Gemma4", "google/gemma-4-26B-A4B-it", {"tensor_parallel_size": 2, "enable_prefix_caching": False,
        "limit_mm_per_prompt": {"image": 0, "audio": 0}, "async_scheduling": True}),
    Run("recipes GLM", "zai-org/GLM-4.5-Air-FP8", {"tensor_parallel_size": 8}),
    Run("recipes Phi-4", "microsoft/Phi-4-mini-instruct", {"max_model_len": 4000}),
    Run("recipes Ministral-3", "mistralai/Ministral-3-14B-Instruct-2512", _MISTRAL),
    Run("recipes Nemotron-3-Nano", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"max_num_seqs": 8, "max_model_len": 262144}),
    Run("recipes LFM2.5", "LiquidAI/LFM2.5-8B-A1B", {"tensor_parallel_size": 2}),
    Run("recipes MiniMax-M2", "MiniMaxAI/MiniMax-M2.7", {"data_parallel_size": 8, "enable_expert_parallel": True,
        "compilation_config": {"cudagraph_mode": "PIECEWISE"}}),
    _nemo("grpo-qwen3-30ba3b-8n8g-megatron", "Qwen/Qwen3-30B-A3B", tensor_parallel_size=4, moe_backend="triton"),
    _nemo("grpo-deepseek-v3-32n8g, without MTP", "deepseek-ai/DeepSeek-V3 in bfloat16", tensor_parallel_size=8,
          moe_backend="triton"),
    _nemo("grpo-moonlight-16ba3b-4n8g-megatron", "moonshotai/Moonlight-16B-A3B-Instruct", moe_backend="triton"),
    _nemo("grpo-nanov3-30BA3B-2n8g-fsdp2", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", tensor_parallel_size=4,
          moe_backend="triton"),
    _nemo("grpo-nemotron3-super-120BA12B-16n8g-megatron", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
          tensor_parallel_size=8, moe_backend="triton", enable_prefix_caching=False, mamba_cache_mode="align",
          load_format="auto", speculative_config={"method": "mtp", "num_speculative_tokens": 5}),
    _nemo("grpo-gemma3-27b-it-8n8g-fsdp2tp8", "google/gemma-3-27b-it", tensor_parallel_size=4, max_model_len=16384,
          load_format="auto"),
    _nemo("dapo-gemma4-26ba4b-it-4n8g-fsdp2", "google/gemma-4-26B-A4B-it", tensor_parallel_size=4, language_model_only=True,
          load_format="auto"),
    _nemo("grpo-llama3.1-8b-instruct-4n8g-fsdp2tp1-long", "meta-llama/Llama-3.1-8B-Instruct"),
    _nemo("dapo-qwen2.5-7b-16n4g-fsdp2cp2", "Qwen/Qwen2.5-7B"),
    _verl("run_qwen3_8b_fsdp", "Qwen/Qwen3-8B", tensor_parallel_size=2, gpu_memory_utilization=0.6),
    _verl("run_qwen3_30b_a3b_megatron", "Qwen/Qwen3-30B-A3B", ("0.26.0",), tensor_parallel_size=4, moe_backend="triton"),
    _verl("run_qwen2_5_vl_7b_fsdp", "Qwen/Qwen2.5-VL-7B-Instruct", tensor_parallel_size=2, enable_chunked_prefill=False),
)  # fmt: skip


@pytest.fixture(scope="module")
def refusals(registry, tmp_path_factory):
    """Returns why a run is refused, by id and slot."""
    folder = tmp_path_factory.mktemp("models")

    def refuse(run: Run, version: str) -> list[str]:
        model = folder / run.model.replace("/", "--")
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(_CONFIGS[run.model]))
        purpose = "rollout" if run.trainer else "serve"
        values = {"model": str(model), "purpose": purpose, "engine": run.engine, **run.sections}
        context = RunContext.gather(
            GenerationConfig.parse(values),
            assume=[f"vllm=={version}", "platform==cuda", "gpu==9.0", "transformers==5.19.0"],
            environ={},
        )
        facts = {**TRAINERS[run.trainer].facts, "train.framework": run.trainer} if run.trainer else {}
        context = context.model_copy(update={"settings": {**context.settings, **facts}})
        plan = registry.resolve(context, Switches.gather(environ={}))
        return [f"{quirk.id} {refusal.slot}: {refusal.reason}" for refusal in plan.refusals for quirk in refusal.quirks]

    return refuse


@pytest.mark.parametrize("run", _RUNS, ids=lambda run: f"{run.source}: {run.model}")
def test_no_quirk_refuses_a_published_run(refusals, run):
    assert {version: found for version in run.versions if (found := refusals(run, version))} == {}
