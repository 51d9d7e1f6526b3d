"""Latent attention on the CPU platform computes with the kernels that take every dtype, and refits."""

from __future__ import annotations

import pytest

from quirks_plugins.runs import MOONLIGHT

CPU = ("platform==cpu", "cpu==amx", "vllm==0.32.0")
BACKEND = "engine.attention_backend"


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float32"])
def test_a_rollout_gets_the_reference_kernels(plan_for, dtype):
    assert plan_for(MOONLIGHT, {"engine.dtype": dtype}, assume=CPU).changes == {BACKEND: "CPU_MLA"}


@pytest.mark.parametrize(
    ("dtype", "changes"), [("auto", {}), ("bfloat16", {}), ("float16", {BACKEND: "CPU_MLA"}), ("float32", {BACKEND: "CPU_MLA"})]
)
def test_a_server_keeps_the_fast_kernels_in_the_dtype_that_they_take(plan_for, dtype, changes):
    assert plan_for(MOONLIGHT, {"engine.dtype": dtype, "purpose": "serve"}, assume=CPU).changes == changes


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({BACKEND: "AMX_MLA"}, {"cpu-amx-mla"}),
        ({BACKEND: "CPU_MLA"}, set()),
        ({BACKEND: "cpu_mla"}, set()),
        ({"engine.attention_config": {"backend": "CPU_MLA"}}, set()),
    ],
)
def test_a_typed_backend_stays_or_is_refused(plan_for, settings, refused):
    outcome = plan_for(MOONLIGHT, settings, assume=CPU)

    assert outcome.refused_by == refused
    assert outcome.changes == {}


@pytest.mark.parametrize(("version", "state"), [("0.28.1", "dormant"), ("0.29.0", "active")])
def test_it_begins_with_the_release_that_has_the_kernels(plan_for, version, state):
    assert plan_for(MOONLIGHT, assume=("platform==cpu", "cpu==amx", f"vllm=={version}")).state == state
