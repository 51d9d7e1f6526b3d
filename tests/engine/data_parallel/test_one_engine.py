"""One engine that owns its data-parallel ranks: Qwen3-MoE with shared experts, and a dense model."""

from __future__ import annotations

import pytest
import pytest_asyncio

from worker.lab.kit.lab import PROMPTS
from worker.lab.parity.measure import measure
from worker.lab.parity.prompts import Prompts
from worker.lab.parity.session import Session
from worker.lab.parity.thresholds import chosen_thresholds
from worker.lab.parity.trainer import Trainer, TrainerOptions

_EVAL = {
    "purpose": "eval",
    "engine": {"data_parallel_size": 2},
    "parallel": {"dp_strategy": "engine"},
    "env": {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def group(checkpoint, grouped):
    values = {
        "purpose": "rollout",
        "engine": {"data_parallel_size": 2, "enable_expert_parallel": True, "num_gpu_blocks_override": 512},
        "parallel": {"dp_strategy": "engine", "expert_parallel_size": 2},
        "env": {"OMP_NUM_THREADS": "1"},
    }
    async with grouped(checkpoint("qwen3_moe"), values, own_workers=True) as started:
        yield started


def test_the_patches_are_in_force_in_every_process(group):
    (receipt,) = group.receipts
    ranks = [f"EngineCore_DP{rank}{worker}" for rank in (0, 1) for worker in ("", "/VllmWorker-0")]

    assert sorted(ack.process for ack in receipt.processes) == sorted(["MainProcess", *ranks])
    for ack in receipt.processes:
        pending = {effect.slot.rpartition(".")[2]: effect.pending for effect in ack.effects}
        assert pending.keys() >= {"all_gatherv", "reduce_scatterv", "apply"}
        if "VllmWorker" in ack.process:  # workers never import the scheduler, which other quirks patch
            assert not any(pending[name] for name in ("all_gatherv", "reduce_scatterv", "apply"))
        assert ack.digest == group.plan.digest
    assert [ack.engine["engine.enforce_eager"] for ack in receipt.processes if ack.engine] == [True] * 4  # the quirk's


@pytest.mark.parametrize("transport", ["ipc_zmq", "collective"])
async def test_a_refit_reaches_every_rank_of_one_engine(group, tokens, checkpoint, lab, refit_section, transport):
    """VLLM's own ``collective_rpc`` answers for the first rank alone; its number of ranks would leave the others out."""
    refit_section(group.refits.sender, transport=transport)
    for seed in (1, 0):
        trainer = lab.trainer(checkpoint("qwen3_moe", seed=seed))
        expected = [row.tokens for row in lab.reference(trainer)]

        await group.refit_async(trainer)

        for rank in (0, 1):
            assert await tokens(group, PROMPTS, rank=rank) == expected, f"rank {rank}"
        assert await group.verify_refit_async(trainer) == {}
    other = await group.verify_refit_async(lab.trainer(checkpoint("qwen3_moe", seed=1)))
    assert {name.rpartition(" worker ")[2].partition(" ")[0] for name in other} == {"0", "1"}


async def test_a_dense_model_works_with_one_engine_that_owns_two_ranks(checkpoint, running, lab):
    model = checkpoint("qwen3")
    async with running(model, _EVAL) as worker:
        assert worker.plan.value("parallel.dp_strategy") == "engine"
        assert [(row.dp_rank, row.dp_size, row.ep_size) for row in worker.topology.rows] == [(0, 1, 1), (1, 1, 1)]

        got = [await lab.greedy(worker) for _ in range(4)]  # the engine spreads them
        trainer = Trainer.load(str(model), TrainerOptions())
        session = Session(worker, trainer, TrainerOptions(), Prompts(PROMPTS), new_tokens=16, seed=0)
        (parity,) = await measure(session, ["data-parallel"], chosen_thresholds("float32"))

    expected = lab.reference(model)
    assert all(lab.same_tokens(found, expected).passed for found in got)
    assert {sample.note for sample in parity.samples} == {"rank 0", "rank 1"}
    assert (parity.status, parity.level) == ("measured", "ok")


async def test_moe_ranks_without_expert_parallelism_are_right(checkpoint, running, lab):
    async with running(checkpoint("qwen3_moe"), _EVAL) as worker:
        rows = worker.topology.rows
        assert [(row.dp_rank, row.dp_size, row.ep_rank) for row in rows] == [(0, 2, None), (1, 2, None)]
        assert {len(held) for row in rows for held in row.experts.values()} == {8}  # every rank has a part of every expert

        got = [await lab.greedy(worker) for _ in range(2)]  # the engine spreads them

    expected = lab.reference(checkpoint("qwen3_moe"))
    assert all(lab.same_tokens(found, expected).passed for found in got)
