"""Experts without a gate are refused on the CPU platform."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("layers", "platform", "refused"),
    [
        ({"hybrid_override_pattern": "MEM*E"}, "cpu", {"cpu-nongated-moe"}),
        ({"layers_block_type": ["linear_attention", "moe"]}, "cpu", {"cpu-nongated-moe"}),
        ({"hybrid_override_pattern": "M-M*-", "n_routed_experts": 4}, "cpu", set()),
        ({"hybrid_override_pattern": "MEM*E"}, "cuda", set()),
        ({}, "cpu", set()),
    ],
)
def test_it_is_refused_where_a_layer_has_experts(plan_for, layers, platform, refused):
    outcome = plan_for({"model_type": "nemotron_h", **layers}, assume=(f"platform=={platform}", "vllm==0.32.0"))

    assert outcome.refused_by == refused
