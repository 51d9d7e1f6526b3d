"""Weights that the trainer's dtype holds, and the engine's does not: refused or named, and no NaN outlives them."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from worker.errors import RefitError

#: The engine's dtype, the trainer's, and a value between the two.
CASTS = {"float16": (torch.float32, 1e5), "float32": (torch.float64, 1e39)}
NAMES = ["model.layers.0.self_attn.o_proj.weight", "model.embed_tokens.weight"]
#: Few blocks, so that each is soon used again.
SMALL = {"max_model_len": 128, "num_gpu_blocks_override": 16}


@pytest.fixture
def policy(checkpoint, lab):
    """A trainer's model, and what the engine should make of it."""
    return lab.trainer(checkpoint("qwen3", seed=1))


@pytest.fixture(scope="module", params=CASTS)
async def cast(request, checkpoint, running):
    """An engine of a dtype, with that dtype, the trainer's and the value."""
    async with running(checkpoint("qwen3"), {"engine": SMALL | {"dtype": request.param}}) as worker:
        yield worker, request.param, *CASTS[request.param]


def spoilt(policy, name, value, count=5):
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


async def test_values_that_are_lost_in_the_cast_are_refused_by_name(cast, policy, lab):
    worker, dtype, wider, value = cast
    policy.to(wider)
    for name in (NAMES[0], *NAMES):  # the first refit is loaded, later ones are copied where that is all
        with pytest.raises(RefitError, match=rf"not finite, {name} \(5 values\) \(a cast to the engine's {dtype} .*correct"):
            await worker.refit_async(spoilt(policy, name, value))
        await worker.refit_async(policy)
        await assert_right(worker, policy.float(), lab, rounds=1)
        policy.to(wider)
    assert worker.last_refit.not_finite == {}


async def test_accepted_lost_values_are_named_and_leave_no_nan(cast, policy, lab, refit_section):
    worker, _, wider, value = cast
    refit_section(worker.refitting.sender, finite=False)
    policy.to(wider)
    for _ in range(2):
        await worker.refit_async(spoilt(policy, NAMES[0], value), version="large")
        assert worker.last_refit.not_finite == {NAMES[0]: 5}
        assert "not-finite" in {verdict.kind for verdict in worker.last_refit.verdicts}
        assert any(f"the weights 'large' are not finite: {NAMES[0]} (5 values)" in text for text in worker.warnings)
        for _ in range(4):
            assert all(math.isnan(row.logprobs[-1]) for row in await lab.greedy(worker))

        await worker.refit_async(policy)

        assert "not-finite" not in {verdict.kind for verdict in worker.last_refit.verdicts}
        await assert_right(worker, policy, lab)


@pytest.mark.parametrize("cast", ["float16"], indirect=True)
async def test_no_nan_outlives_finite_weights_whose_answers_overflow(cast, policy, lab):
    worker, *_ = cast
    await worker.refit_async(spoilt(policy, NAMES[0], 6e4, count=1000))
    assert worker.last_refit.not_finite == {}
    for _ in range(4):
        assert all(math.isnan(row.logprobs[-1]) for row in await lab.greedy(worker))

    await worker.refit_async(policy)

    await assert_right(worker, policy, lab)
