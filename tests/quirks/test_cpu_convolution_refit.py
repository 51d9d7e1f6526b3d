"""A refit in bfloat16 on the CPU platform reaches the convolutions of Mamba-2 layers."""

from __future__ import annotations

import pytest

CPU = ("platform==cpu", "cpu==avx512_bf16", "vllm==0.32.0")


@pytest.mark.parametrize(
    ("dtype", "patched"),
    [("auto", ["dispatch_cpu_unquantized_gemm"]), ("bfloat16", ["dispatch_cpu_unquantized_gemm"]), ("float32", [])],
)
def test_a_rollout_that_may_compute_in_bfloat16_is_patched(plan_for, dtype, patched):
    assert plan_for("nemotron_h", {"engine.dtype": dtype}, assume=CPU).patched == patched


@pytest.mark.parametrize(("version", "state"), [("0.26.0", "dormant"), ("0.27.0", "active")])
def test_it_begins_with_the_release_that_runs_these_models_on_cpus(plan_for, version, state):
    assert plan_for("mamba2", assume=("platform==cpu", "cpu==avx512_bf16", f"vllm=={version}")).state == state
