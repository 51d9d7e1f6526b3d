"""Attention heads for which the CPU platform has no kernel are refused."""

from __future__ import annotations

import pytest

LATENT = {"model_type": "deepseek_v2", "num_attention_heads": 4, "head_dim": 64, "qk_nope_head_dim": 32}
HEADS = {"model_type": "llama", "hidden_size": 128, "num_attention_heads": 8}


@pytest.mark.parametrize(
    ("model", "platform", "refused"),
    [
        (HEADS, "cpu", {"cpu-head-size"}),
        (HEADS | {"head_dim": 64}, "cpu", set()),
        (HEADS | {"qk_rope_head_dim": 64}, "cpu", set()),  # latent attention has widths of its own
        (HEADS, "cuda", set()),
        ("mamba2", "cpu", set()),
    ],
)
def test_only_the_widths_of_its_kernels_pass(plan_for, model, platform, refused):
    assert plan_for(model, assume=(f"platform=={platform}", "vllm==0.32.0")).refused_by == refused


@pytest.mark.parametrize(
    ("rank", "rotated", "refused"),
    [
        (512, 64, set()),
        (64, 32, {"cpu-head-size"}),
        (448, 128, {"cpu-head-size"}),  # the same width of a cached token, and no kernel
        (256, 64, {"cpu-head-size"}),  # vLLM's own check lets it pass
    ],
)
def test_latent_attention_has_one_kernel(plan_for, rank, rotated, refused):
    model = LATENT | {"kv_lora_rank": rank, "qk_rope_head_dim": rotated}

    assert plan_for(model, assume=("platform==cpu", "vllm==0.32.0")).refused_by == refused


@pytest.mark.parametrize(("kind", "environ"), [("minicpm3", {}), ("deepseek_v2", {"VLLM_MLA_DISABLE": "1"})])
def test_latent_attention_that_vllm_computes_as_ordinary_attention_passes(plan_for, kind, environ):
    model = LATENT | {"model_type": kind, "kv_lora_rank": 64, "qk_rope_head_dim": 32}

    assert not plan_for(model, assume=("platform==cpu", "vllm==0.32.0"), environ=environ).refused_by
