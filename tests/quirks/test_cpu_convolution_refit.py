"""A refit in bfloat16 on the CPU platform reaches the convolutions of Mamba-2 layers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from quirks_plugins.weight_sync.cpu_refit_patches import wrap_dispatch

CPU = ("platform==cpu", "vllm==0.32.0")


@pytest.mark.parametrize(
    ("dtype", "patched"),
    [("auto", ["dispatch_cpu_unquantized_gemm"]), ("bfloat16", ["dispatch_cpu_unquantized_gemm"]), ("float32", [])],
)
def test_a_rollout_that_may_compute_in_bfloat16_is_patched(plan_for, dtype, patched):
    assert plan_for("nemotron_h", {"engine.dtype": dtype}, assume=CPU).patched == patched


@pytest.mark.parametrize(("version", "state"), [("0.26.0", "dormant"), ("0.27.0", "active")])
def test_it_begins_with_the_release_that_runs_these_models_on_cpus(plan_for, version, state):
    assert plan_for("mamba2", assume=("platform==cpu", f"vllm=={version}")).state == state


@pytest.mark.parametrize("packs", [True, False])
def test_each_packing_leaves_the_plain_weights_where_the_mixer_reads_them(packs):
    def dispatch(layer, remove_weight):
        assert remove_weight
        if packs:
            layer.weight.data = layer.weight.data.clone().flip(0)

    patched = wrap_dispatch(dispatch)
    layer = SimpleNamespace(weight=torch.nn.Parameter(torch.rand(8, 1, 4), requires_grad=False))
    read_by_the_mixer = layer.weight.data.view(8, 4)
    patched(layer, remove_weight=True)

    new = torch.rand(8, 1, 4)
    layer.weight = torch.nn.Parameter(new.clone(), requires_grad=False)  # as a reload does
    patched(layer, remove_weight=True)

    assert torch.equal(read_by_the_mixer, new.view(8, 4)) is packs
