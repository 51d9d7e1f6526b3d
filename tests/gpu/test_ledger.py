"""Digests on a GPU, and the ledger of an engine there. CI has no GPU; docs/results/gpu.md has the last results.

What the ledger costs is measured by ``benchmarks/refit.py``, with and without ``MODEL_QUIRKS_LEDGER=off``. The aim is at most
10 ms on 16 GB, or 5 % of vLLM's own update if that is more.
"""

from __future__ import annotations

import pytest
import torch

from worker import VllmAsyncGenerationWorker
from worker.lab.kit import checkpoints
from worker.lab.parity.session import running
from worker.refit import Arrivals, digest
from worker.refit.weights.digest import Standing, digests

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

#: The cache's size is not measured, so that other programs may use the GPU meanwhile.
ENGINE = {"max_model_len": 256, "gpu_memory_utilization": 0.2, "kv_cache_memory_bytes": 2 << 30, "dtype": "bfloat16"}


@torch.no_grad()
def step(policy):
    """Trains for one step: every parameter changes."""
    for parameter in policy.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8])
def test_a_digest_is_the_same_on_every_device(dtype, whole):
    tensors = {str(shape): torch.randn(shape).to(dtype) for shape in ((3,), (1000, 333), (4096, 2048))}
    there = {name: tensor.cuda() for name, tensor in tensors.items()}

    assert digests(there.items(), whole=whole) == digests(tensors.items(), whole=whole)
    turned = {name: tensor.t().contiguous().t() if tensor.ndim == 2 else tensor for name, tensor in there.items()}
    assert digests(turned.items(), whole=whole) == digests(tensors.items(), whole=whole)


@pytest.mark.parametrize("whole", [True, False])
def test_a_cuda_graph_digests_standing_tensors_alike(whole):
    memory = torch.randn(80, 1000, 400, device="cuda")
    tensors = {str(number): tensor for number, tensor in enumerate(memory)}
    tensors |= {"turned": memory[0].t(), "small": memory[1, 0, :3]}
    standing = Standing(whole=whole)
    for _ in range(4):  # by themselves, captured, replayed
        assert standing.digests(tensors.items()) == digests(tensors.items(), whole=whole)
        memory.add_(torch.randn_like(memory))

    moved = {name: tensor.clone() for name, tensor in tensors.items()}
    fewer = dict(list(tensors.items())[5:])
    for some in (moved, moved, fewer, fewer, fewer):
        assert standing.digests(some.items()) == digests(some.items(), whole=whole)


async def test_the_ledger_beside_cuda_graphs_names_what_is_sent_again(tmp_path):
    from transformers import AutoModelForCausalLM

    model = checkpoints.build("qwen3", tmp_path / "model", seed=0)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).cuda()
    async with running(VllmAsyncGenerationWorker({"model": str(model), "engine": ENGINE})) as worker:
        for _ in range(3):
            step(policy)
            await worker.refit_async(policy)
            (entry,) = worker.last_refit.entries
            assert (worker.last_refit.verdicts, len(entry.changed)) == ((), len(entry.digests))
        await worker.refit_async(policy)
        (note,) = worker.last_refit.verdicts
        assert (note.kind, note.is_grave) == ("unchanged", False)


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
async def test_the_trainers_digests_on_a_gpu_are_the_engines(tmp_path, kind):
    from transformers import AutoModelForCausalLM

    model = checkpoints.build(kind, tmp_path / "model", seed=0)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).cuda()
    arrivals = Arrivals()
    async with running(VllmAsyncGenerationWorker({"model": str(model), "engine": ENGINE})) as worker:
        for _ in range(3):
            step(policy)
            await worker.refit_async(policy)
            found = arrivals.compare(worker.last_refit.entries, digest(policy))
            assert (found.share, found.verdict) == (1, "")
            assert {"layers.0.self_attn.qkv_proj.weight", "layers.1.self_attn.o_proj.weight"} <= set(found.arrived)
            assert all(".experts." in name for name in found.incomparable)
