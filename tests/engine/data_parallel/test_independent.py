"""Two engines of a dense model that share nothing but a trainer."""

from __future__ import annotations

import pytest
import pytest_asyncio

from worker.errors import NotReadyError, RefitRejectedError
from worker.lab.kit.lab import PROMPTS


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def group(checkpoint, grouped):
    values = {"purpose": "rollout", "engine": {"data_parallel_size": 2}}
    async with grouped(checkpoint("qwen3"), values) as started:
        yield started


async def _rejected(group, model):
    """All ranks reject a refit of other weights than were announced."""
    await group.prepare_refit_info_async({"another.weight": ((1,), "float32")})
    with pytest.raises(RefitRejectedError, match=r"rank 0: .*rejected"):
        await group.refit_async(model)
    await group.prepare_refit_info_async({name: (one.shape, one.dtype) for name, one in model.named_parameters()})


async def test_dummy_weights_generate_nothing_after_a_rejected_refit(group, tokens, checkpoint, lab):
    await _rejected(group, lab.trainer(checkpoint("qwen3")))

    with pytest.raises(NotReadyError, match=r"rank \d: the engine started from dummy weights .* refit before generating"):
        await tokens(group, PROMPTS)
    assert [state["weights"] for state in await group.health()] == ["dummy", "dummy"]


async def test_one_refit_reaches_both_engines(group, tokens, checkpoint, lab):
    """A later one that all ranks reject changes nothing."""
    trainer = lab.trainer(checkpoint("qwen3"))
    expected = [row.tokens for row in lab.reference(trainer)]

    await group.refit_async(trainer)

    for rank in (0, 1):
        assert await tokens(group, PROMPTS, rank=rank) == expected, f"rank {rank}"
    assert await group.verify_refit_async(trainer) == {}

    await _rejected(group, lab.trainer(checkpoint("qwen3", seed=1)))

    for rank in (0, 1):
        assert await tokens(group, PROMPTS, rank=rank) == expected, f"rank {rank}"
