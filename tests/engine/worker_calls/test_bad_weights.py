"""Weights that do not fit, or that are not numbers: a refit says so, and the next complete one is as good as any."""

from __future__ import annotations

import asyncio
import copy
import math

import pytest

from worker.errors import NotReadyError, RefitError

Q = "model.layers.0.self_attn.q_proj.weight"
#: The last tensor that a trainer sends.
LAST = "model.norm.weight"


def changed(policy, name, change):
    """The policy's model with one tensor replaced."""
    model = copy.deepcopy(policy.model)
    parameter = model.get_parameter(name)
    parameter.data = change(parameter.data.clone())
    return model


async def refit_announced(worker, model):
    """Refits with an announcement: without one, what is not as in the checkpoint is rejected before it is loaded."""
    await worker.prepare_refit_info_async({name: (tensor.shape, tensor.dtype) for name, tensor in model.named_parameters()})
    try:
        await worker.refit_async(model)
    finally:
        worker.refitting.announced = None


def with_value(value, count=1):
    """Replaces the first values of a tensor."""

    def change(tensor):
        tensor.view(-1)[:count] = value
        return tensor

    return change


def one_row_less(tensor):
    return tensor[:-1].clone()


def one_column_less(tensor):
    return tensor[:, :-1].clone()


@pytest.fixture
def accepting(refitting):
    """The engine takes weights that are not finite, for one test."""
    refitting(finite=False)


@pytest.mark.parametrize(
    ("transport", "name", "change"),
    [
        ("ipc_zmq", Q, one_row_less),
        ("collective", "model.layers.1.self_attn.o_proj.weight", one_column_less),
        ("ipc_zmq", "model.embed_tokens.weight", one_column_less),
        ("collective", LAST, one_row_less),
    ],
)
async def test_a_complete_refit_mends_after_a_misfit(worker, policies, holds, lab, refitting, transport, name, change):
    refitting(transport=transport)
    for _ in range(2):
        with pytest.raises(RefitError, match=rf"half-way \(.* does not take {name}, float32 \[.* once more, completely"):
            await refit_announced(worker, changed(policies.b, name, change))
    with pytest.raises(NotReadyError, match="a refit failed half-way"):
        await lab.greedy(worker)

    await worker.refit_async(policies.b.model)

    assert (await holds(policies.b)).passed
    assert await worker.verify_refit_async(policies.b.model) == {}


@pytest.mark.parametrize("transport", ["ipc_zmq", "collective"])
# Packed and fused, which is always loaded; copied from the second refit on.
@pytest.mark.parametrize("name", [Q, LAST])
async def test_weights_that_are_not_finite_are_refused_by_name(worker, policies, name, holds, lab, refitting, transport):
    refitting(transport=transport)
    await worker.refitting.forget(plan=True)
    for _ in range(2):
        with pytest.raises(RefitError, match=rf"not finite, {name} \(3 values\); .* refit once more, completely"):
            await worker.refit_async(changed(policies.b, name, with_value(math.nan, 3)))
        with pytest.raises(NotReadyError, match="not finite"):
            await lab.greedy(worker)

        await worker.refit_async(policies.b.model)

    assert (await holds(policies.b)).passed


@pytest.mark.usefixtures("accepting")
async def test_no_nan_outlives_weights_that_were_accepted(worker, policies, lab):
    before = len(worker.warnings)
    await worker.refit_async(
        changed(policies.b, "model.layers.0.self_attn.v_proj.weight", with_value(math.nan, 2)), version="nan"
    )
    assert worker.last_refit.not_finite == {"model.layers.0.self_attn.v_proj.weight": 2}
    assert {verdict.kind for verdict in worker.last_refit.verdicts} == {"not-finite"}
    assert "the weights 'nan' are not finite: model.layers.0.self_attn.v_proj.weight (2 values)" in worker.warnings[before]
    for _ in range(20):
        spoilt = await lab.greedy(worker)
    assert all(math.isnan(row.logprobs[0]) for row in spoilt)

    await worker.refit_async(policies.b.model)

    assert worker.last_refit.verdicts == ()
    for _ in range(20):
        rows = await lab.greedy(worker)
        assert [row.tokens for row in rows] == [row.tokens for row in policies.b.tokens]
        assert lab.largest_difference(rows, policies.b.tokens) < 1e-3


@pytest.mark.usefixtures("accepting")
async def test_requests_in_flight_go_on_as_under_finite_weights_alone(worker, policies, lab, sampling, generated):
    sampling(max_new_tokens=200)
    await worker.refit_async(changed(policies.b, "model.layers.0.self_attn.v_proj.weight", with_value(math.nan)))
    generating = asyncio.create_task(lab.greedy(worker))
    await generated(requests=len(lab.PROMPTS))

    await worker.refit_async(policies.b.model, clear_cache=True)

    rows = await generating
    for row, expected in zip(rows, lab.rescored(policies.b.model, rows), strict=True):
        assert math.isnan(row.logprobs[0])
        assert row.logprobs[-1] == pytest.approx(expected.logprobs[-1], abs=1e-3)
