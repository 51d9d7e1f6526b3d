"""Refits of models whose weights vLLM's CPU platform keeps packed: each brings all of the new weights into force."""

from __future__ import annotations

import pytest


# A tied head (quirk cpu-tied-head-refit); packed experts and a router's bias (cpu-moe-experts-refit, router-bias-buffers).
@pytest.mark.parametrize("kind", ["llama_tied", "glm4_moe"])
async def test_after_every_refit_the_engine_generates_what_the_trainer_does(kind, shared_lab):
    trainers = [shared_lab.trainer(shared_lab.checkpoint(kind, seed=seed)) for seed in (1, 2)]

    async with shared_lab.worker(shared_lab.checkpoint(kind)) as worker:
        outcomes = []
        for trainer in trainers:
            await worker.refit_async(trainer)
            outcomes.append(shared_lab.same_tokens(await shared_lab.greedy(worker), shared_lab.reference(trainer)))

    assert all(outcome.passed for outcome in outcomes), outcomes
    assert outcomes[0].expected != outcomes[1].expected
