"""Attention heads for which the CPU platform has no kernel are refused."""

from __future__ import annotations

import pytest

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
