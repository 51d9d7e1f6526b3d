"""The experts of a MoE model on vLLM's CPU platform are packed anew in a refit."""

from __future__ import annotations

import pytest

from quirks_plugins.runs import QWEN3_MOE, parallel

CPU = "platform==cpu"


def test_a_rollout_of_a_moe_model_is_patched_also_beside_expert_parallelism(plan_for):
    plain = plan_for(QWEN3_MOE, assume=[CPU])
    spread = plan_for(QWEN3_MOE, parallel(dp=2, flag=True), assume=[CPU])

    assert plain.patched == spread.patched == ["UnquantizedFusedMoEMethod._setup_kernel"]
    assert {patch.quirk.id for patch in spread.plan.patches} >= {"cpu-moe-expert-parallel", "cpu-moe-experts-refit"}
    assert (plain.refused_by, spread.refused_by) == (set(), set())


@pytest.mark.parametrize(("version", "state"), [("0.27.1", "dormant"), ("0.28.0", "active")])
def test_it_begins_with_the_release_that_packs_experts_once(plan_for, version, state):
    assert plan_for(QWEN3_MOE, assume=[CPU, f"vllm=={version}"]).state == state
