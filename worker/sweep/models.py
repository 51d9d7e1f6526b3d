"""Tiny models of the kinds that a sweep runs: those of the kit, and further ones by the values of their configurations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker.testing import checkpoints

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_group": 1, "topk_group": 1}
_SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
_DENSE_THEN_SPARSE = {"mlp_layer_types": ["dense", "sparse"]}
_ALL_HEADS = {"num_key_value_heads": 2}
_TIED = {"tie_word_embeddings": True}
#: Latent attention has kernels for this width only: 512 + 64.
_LATENT = {
    **_ALL_HEADS,
    "q_lora_rank": 32,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
}
_INDEXER = {"index_topk": 16, "index_head_dim": 128, "index_n_heads": 2}
_DELTA_NET = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_MULTIPLIERS = {"embedding_multiplier": 2.0, "logits_scaling": 0.5, "residual_multiplier": 0.5, "attention_multiplier": 0.2}

#: What the kinds beside the kit's have over what all share, by ``model_type``; a colon marks a variant of one. Keys below
#: ``config.json`` are in released checkpoints, where vLLM reads them, and unknown to transformers.
FURTHER: Mapping[str, Mapping[str, Any]] = {
    "afmoe": {
        **_EXPERTS,
        **_SLIDING,
        "head_dim": 32,
        "moe_intermediate_size": 64,
        "num_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "score_func": "sigmoid",
        "route_norm": True,
    },
    "arcee": {"head_dim": 32},
    "axk1": {**_LATENT, **_ROUTED},
    "bamba": {
        "attn_layer_indices": [1],
        "mamba_n_heads": 4,
        "mamba_d_head": 32,
        "mamba_d_state": 16,
        "mamba_chunk_size": 16,
    },
    "bloom": {"n_layer": 2, "n_head": 2, **_TIED},
    "cohere": {"use_qk_norm": True, "logit_scale": 2.0, **_TIED},
    # No sequence is longer than this window; `cohere2:window` has a shorter one.
    "cohere2": {**_SLIDING, **_TIED, "logit_scale": 2.0, "sliding_window": 512},
    "cohere2:window": {**_SLIDING, **_TIED, "logit_scale": 2.0},
    "cohere2_moe": {
        **_EXPERTS,
        **_SLIDING,
        **_TIED,
        **_DENSE_THEN_SPARSE,
        "head_dim": 32,
        "logit_scale": 2.0,
        "sliding_window": 512,
    },
    "cwm": {**_SLIDING, "head_dim": 32},
    "dbrx": {
        "d_model": 64,
        "n_heads": 2,
        "n_layers": 2,
        "attn_config": {"kv_n_heads": 1, "clip_qkv": 8.0, "rope_theta": 10_000.0},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {**_LATENT, **_ROUTED, "first_k_dense_replace": 1, "n_shared_experts": 1, "topk_method": "greedy"},
    "deepseek_v32": {**_LATENT, **_ROUTED, **_INDEXER, "first_k_dense_replace": 1, "topk_method": "noaux_tc"},
    "ernie4_5": {"head_dim": 32},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 64, "moe_num_shared_experts": 1},
    "exaone4": {**_SLIDING},
    "exaone_moe": {**_EXPERTS, **_SLIDING, **_DENSE_THEN_SPARSE, "head_dim": 32, "moe_intermediate_size": 64},
    "falcon": {"num_kv_heads": 1, **_TIED},
    "falcon_mamba": {"state_size": 16, "use_mambapy": False},
    "flex_olmo": {**_EXPERTS},
    "gemma": {"head_dim": 32, **_TIED},
    "gemma3n_text": {
        **_SLIDING,
        **_TIED,
        "head_dim": 32,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": checkpoints.VOCAB_SIZE,
        "num_kv_shared_layers": 0,
        "laurel_rank": 16,
        "activation_sparsity_pattern": [0.5, 0.0],
    },
    "glm": {"head_dim": 32},
    "glm4": {"head_dim": 32},
    "glm4_moe_lite": {**_LATENT, **_ROUTED, **_DENSE_THEN_SPARSE, "first_k_dense_replace": 1, "topk_method": "noaux_tc"},
    "glm_moe_dsa": {**_LATENT, **_ROUTED, **_INDEXER, **_DENSE_THEN_SPARSE, "first_k_dense_replace": 1},
    "gpt2": {"n_inner": 128, **_TIED},
    "gpt_bigcode": {**_TIED, "n_inner": 128},
    "gpt_neox": {**_ALL_HEADS},
    "gptj": {"rotary_dim": 16, "n_inner": 128},
    "granite": {**_MULTIPLIERS},
    "granite_swa": {**_MULTIPLIERS, **_SLIDING},
    "granitemoe": {**_LOCAL_EXPERTS, **_MULTIPLIERS},
    "granitemoe_swa": {**_LOCAL_EXPERTS, **_MULTIPLIERS, **_SLIDING, "shared_intermediate_size": 64},
    "granitemoeshared": {**_LOCAL_EXPERTS, **_MULTIPLIERS, "shared_intermediate_size": 64},
    "helium": {"head_dim": 32},
    "hrm_text": {"head_dim": 32, "num_layers_per_stack": 1, "prefix_lm": False},
    "hunyuan_v1_dense": {"head_dim": 32},
    "hunyuan_v1_moe": {"head_dim": 32, "num_experts": 4, "moe_topk": 2},
    "hy_v3": {
        **_EXPERTS,
        **_DENSE_THEN_SPARSE,
        "head_dim": 32,
        "moe_intermediate_size": 64,
        "config.json": {"expert_hidden_dim": 64, "first_k_dense_replace": 1, "route_norm": True, "qk_norm": True},
    },
    "hyperclovax": {"head_dim": 32, **_MULTIPLIERS},
    "jais2": {"head_dim": 32},
    "jamba": {**_EXPERTS, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "kimi_linear": {
        **_LATENT,
        **_DENSE_THEN_SPARSE,
        "q_lora_rank": None,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_head_dim": 32,
        "linear_num_heads": 2,
    },
    "laguna": {
        **_EXPERTS,
        **_SLIDING,
        **_DENSE_THEN_SPARSE,
        "head_dim": 32,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
    # Released checkpoints have further keys, which vLLM reads and transformers takes for granted.
    "lfm2": {"layer_types": ["conv", "full_attention"], "conv_dim": 64, "block_dim": 64, "block_ff_dim": 128, **_TIED},
    "lfm2_moe": {
        **_EXPERTS,
        **_TIED,
        "layer_types": ["conv", "full_attention"],
        "moe_intermediate_size": 64,
        "num_dense_layers": 1,
    },
    "llama4_text": {**_LOCAL_EXPERTS, "head_dim": 32, "intermediate_size_mlp": 128, "num_experts_per_tok": 1},
    "longcat_flash": {
        **_LATENT,
        "num_layers": 2,
        "ffn_hidden_size": 128,
        "expert_ffn_hidden_size": 64,
        "moe_topk": 2,
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "config.json": {"mla_scale_q_lora": True, "mla_scale_kv_lora": True, "zero_expert_type": "identity"},
    },
    "mamba": {"state_size": 16, "use_mambapy": False},
    "mellum": {**_LOCAL_EXPERTS, **_SLIDING, "head_dim": 32, "moe_intermediate_size": 64},
    "mimo_v2_flash": {
        **_ROUTED,
        **_SLIDING,
        **_DENSE_THEN_SPARSE,
        "head_dim": 32,
        "v_head_dim": 32,
        "config.json": {
            "hybrid_layer_pattern": [1, 0],
            "moe_layer_freq": [0, 1],
            "layernorm_epsilon": 1e-5,
            "sliding_window_size": 16,
            "swa_head_dim": 32,
            "swa_v_head_dim": 32,
            "swa_num_attention_heads": 2,
            "swa_num_key_value_heads": 2,
            "add_swa_attention_sink_bias": True,
            "rope_theta": 5_000_000.0,
            "swa_rope_theta": 10_000.0,
            "partial_rotary_factor": 0.334,
        },
    },
    "minicpm3": {**_LATENT, "dim_model_base": 32},
    "ministral3": {"head_dim": 32},
    "mixtral": {**_LOCAL_EXPERTS, "head_dim": 32},
    "nemotron": {"head_dim": 32},
    "olmo": {},
    "olmo3": {**_SLIDING},
    "olmo_hybrid": {**_DELTA_NET},
    "olmoe": {**_EXPERTS},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64, **_TIED},
    "phimoe": {**_LOCAL_EXPERTS, "lm_head_bias": True},
    # As released; transformers itself writes PhimoeForCausalLM, which is none of vLLM's classes.
    "phimoe:released": {
        **_LOCAL_EXPERTS,
        "lm_head_bias": True,
        "attention_bias": True,
        "config.json": {"architectures": ["PhiMoEForCausalLM"]},
    },
    "qwen2_moe": {**_EXPERTS, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64},
    "qwen3_5_moe_text": {
        **_EXPERTS,
        **_DELTA_NET,
        "head_dim": 32,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
    "qwen3_5_text": {**_DELTA_NET, "head_dim": 32},
    "seed_oss": {"head_dim": 32},
    "smollm3": {"no_rope_layers": [1, 0]},
    "stablelm": {"partial_rotary_factor": 0.5},
    "starcoder2": {**_TIED},
    "vaultgemma": {**_SLIDING, **_TIED, "head_dim": 32, "query_pre_attn_scalar": 32},
    "zamba2": {
        **_ALL_HEADS,
        **_TIED,
        "layers_block_type": ["mamba", "hybrid"],
        "mamba_d_state": 16,
        "n_mamba_heads": 4,
        "mamba_headdim": 32,
        "chunk_size": 16,
        "use_mamba_kernels": False,
        "attention_head_dim": 64,
    },
}

#: Every kind of a sweep.
KINDS: tuple[str, ...] = (*checkpoints.KINDS, *FURTHER)


def build(kind: str, folder: Path) -> Path:
    """Writes a tiny random checkpoint (seed 0) with its tokenizer, as `worker.testing.checkpoints.build` does.

    Args:
        kind: One of `KINDS`.
        folder: Where it goes; made if it is missing.

    Returns:
        The folder.

    Raises:
        Exception: Whatever transformers raises if it cannot make such a model.
    """
    if kind in checkpoints.KINDS:
        return checkpoints.build(kind, folder)
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    # The kit's own parts, although they are private: a change of that module would make recorded evidence outdated.
    values = {**checkpoints._SHARED, **FURTHER[kind]}
    written = values.pop("config.json", {})
    config = CONFIG_MAPPING[kind.partition(":")[0]](**values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    randomise(model.eval(), 0)
    model.save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **written}, indent=2), encoding="utf-8")
    checkpoints._write_tokenizer(folder)
    return folder


def randomise(model: PreTrainedModel, seed: int) -> None:
    """Draws every floating tensor of a model's state dict anew, in place and in order of name."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.is_floating_point():
            tensor.copy_(checkpoints._draw(name, tensor, generator))
