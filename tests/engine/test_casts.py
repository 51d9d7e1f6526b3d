"""Weights that the trainer's dtype holds, and the engine's does not: refused or named, and no NaN outlives them."""

from __future__ import annotations

import copy
import math

import pytest

from worker.errors import RefitError

NAMES = ["model.layers.0.self_attn.o_proj.weight", "model.embed_tokens.weight"]
#: Few blocks, so that each is soon used again.
SMALL = {"max_model_len": 128, "num_gpu_blocks_override": 16}


@pytest.fixture
def policy(checkpoint, lab):
    """A trainer's model, and what the engine should make of it."""
    return lab.trainer(checkpoint("qwen3", seed=1))


@pytest.fixture(scope="module")
async def worker(checkpoint, running):
    async with running(checkpoint("qwen3"), {"engine": SMALL | {"dtype": "float16"}}) as found:
        yield found


def spoilt(policy, name, value, count):
    """The model with some values of a tensor replaced."""
    model = copy.deepcopy(policy)
    model.get_parameter(name).data.view(-1)[:count] = value
    return model


async def assert_right(worker, policy, lab, rounds=4):
    """All prompts, also those that were seen before, get the logprobs of the model, whichever blocks they get."""
    for _ in range(rounds):
        rows = await lab.greedy(worker)
        pairs = zip(rows, lab.rescored(policy, rows), strict=True)
        apart = [abs(a - b) for row, other in pairs for a, b in zip(row.logprobs, other.logprobs, strict=True)]
        assert all(one < 0.1 for one in apart)  # false for NaN


async def test_values_that_are_lost_in_the_cast_are_refused_by_name(worker, policy, lab):
    for name in (NAMES[0], *NAMES):  # the first refit is loaded, later ones are copied where that is all
        with pytest.raises(RefitError, match=rf"not finite, {name} \(5 values\) \(a cast to the engine's float16 .*correct"):
            await worker.refit_async(spoilt(policy, name, 1e5, count=5))
        await worker.refit_async(policy)
        await assert_right(worker, policy, lab, rounds=1)
    assert worker.last_refit.not_finite == {}


async def test_no_nan_outlives_finite_weights_whose_answers_overflow(worker, policy, lab):
    await worker.refit_async(spoilt(policy, NAMES[0], 6e4, count=1000))
    assert worker.last_refit.not_finite == {}
    for _ in range(4):
        assert all(math.isnan(row.logprobs[-1]) for row in await lab.greedy(worker))

    await worker.refit_async(policy)

    await assert_right(worker, policy, lab)
