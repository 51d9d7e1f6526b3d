"""Qwen3-MoE over two data-parallel ranks on CPU: right with the quirk's patches, in every process."""

from __future__ import annotations

import pytest_asyncio

_DP2_EP2 = {"engine": {"data_parallel_size": 2, "enable_expert_parallel": True}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def worker(checkpoint, running):
    async with running(checkpoint("qwen3_moe"), {"purpose": "eval", **_DP2_EP2}) as started:
        yield started


async def test_with_the_quirk_two_ranks_with_sharded_experts_generate_what_one_does(worker, checkpoint, lab):
    """Quirk cpu-moe-expert-parallel, with: the other half of the pair is among the engine failures."""
    expected = lab.reference(checkpoint("qwen3_moe"))

    got = await lab.generate(worker)

    assert lab.share_of_equal_tokens(got, expected) == 1.0


async def test_an_idle_rank_does_not_hold_up_the_other(worker, lab):
    outputs = [item async for item in worker.generate_async(lab.batch_of(lab.PROMPTS[:1]), greedy=True)]

    assert len(outputs) == 1


def test_the_patches_are_in_force_in_every_process(worker):
    ranks = [f"EngineCore_DP{rank}{worker}" for rank in (0, 1) for worker in ("", "/VllmWorker-0")]

    assert sorted(ack.process for ack in worker.receipt.processes) == sorted(["MainProcess", *ranks])
    for ack in worker.receipt.processes:
        patched = {effect.slot.rpartition(".")[2] for effect in ack.effects}
        assert patched == {"all_gatherv", "reduce_scatterv", "apply"}
        assert "VllmWorker" not in ack.process or not any(effect.pending for effect in ack.effects)
        assert ack.digest == worker.plan.digest


def test_data_parallel_moe_runs_eagerly_because_the_quirk_requires_it(worker):
    engine = {item.slot: item for item in worker.receipt.engine}

    assert (engine["engine.enforce_eager"].engine, engine["engine.enforce_eager"].binding) == (True, True)
