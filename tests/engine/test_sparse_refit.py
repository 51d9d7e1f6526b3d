"""Sparse refits of real engines: after one they are, and their ledger shows, what they are after a dense one."""

from __future__ import annotations

import pytest
import torch

from worker.errors import RefitError
from worker.refit.weights import sparse


def step(policy):
    """Changes few values of every parameter, as an optimizer does that rounds."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.view(-1)[:: max(1, parameter.numel() // 2)] += 0.25


def seen(worker):
    """What the ledger knows of the weights."""
    (entry,) = worker.last_refit.entries
    return entry.digests, entry.received, entry.tensors, entry.bytes


@pytest.fixture
def sparsely(monkeypatch):
    """What was found to have changed, one by one."""
    found, real = [], sparse.Sent.changed
    monkeypatch.setattr(sparse.Sent, "changed", lambda *given: found.append(real(*given)) or found[-1])
    return found


@pytest.mark.parametrize(
    ("kind", "dtype", "held"),
    [
        ("qwen3", torch.float32, "float16"),
        ("llama_tied", torch.float32, "float32"),
        ("qwen3_moe", torch.bfloat16, "bfloat16"),
    ],
)
async def test_an_engine_is_what_a_dense_refit_makes_of_it(lab, refit_section, sparsely, kind, dtype, held):
    folder = lab.checkpoint(kind)
    policy = lab.trainer(folder).to(dtype)
    values = {"engine": {"dtype": held}, "refit": {"transport": "collective", "sparse": True}}
    async with lab.worker(folder, values) as worker:
        refit_section(worker.refitting.sender, buffer_mb=0)  # each tensor by itself: small ones are not worth a comparison
        for _ in range(4):
            step(policy)
            await worker.refit_async(policy)
        assert len(sparsely) == 2, "the first refit is recorded, the second compared with the loaders"
        assert all(found is not None and len(found.places) > 0 for found in sparsely)
        assert await worker.verify_refit_async(policy) == {}

        policy.lm_head.weight.data[0, 0] = float("nan")
        with pytest.raises(RefitError, match="not finite"):
            await worker.refit_async(policy)
        policy.lm_head.weight.data[0, 0] = 0.0
        await worker.refit_async(policy)
        assert await worker.verify_refit_async(policy) == {}
        for _ in range(3):
            step(policy)
            await worker.refit_async(policy)
        assert len(sparsely) > 2

        after = seen(worker)
        worker.refitting.sender.leave()
        refit_section(worker.refitting.sender, sparse=False)
        await worker.refit_async(policy)
        assert seen(worker) == after
