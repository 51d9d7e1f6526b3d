"""The routes for trainers of an engine that takes weights by a backend of vLLM, as far as that works without a GPU."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from patience import HUNG_S

from worker.errors import RefitError


@pytest.fixture(scope="module")
async def worker(checkpoint, running):
    values = {
        "engine": {"load_format": "auto", "max_model_len": 128, "weight_transfer_config": {"backend": "ipc"}},
        "refit": {"timeout_s": 2.0},
        "server": {"enabled": True, "rl_routes": True},
    }
    async with running(checkpoint("qwen3"), values) as found:
        yield found


@pytest.fixture
async def trainer(worker):
    """Calls a route; returns the status and the reply's text."""
    url = (await worker.report_dp_openai_server_base_url()).removesuffix("/v1")
    async with httpx.AsyncClient(base_url=url, auth=("", worker.rl_api_key), timeout=HUNG_S) as http:

        async def call(path, body=None):
            reply = await http.post(path, json=body)
            return reply.status_code, reply.text

        yield call


async def test_a_refusal_of_the_worker_s_own_refit_names_the_backend(worker, lab, checkpoint):
    for refit in (worker.refit_async(lab.trainer(checkpoint("qwen3"))), worker.update_weights_via_ipc_zmq_async()):
        with pytest.raises(RefitError, match="the engine takes weights by the backend 'ipc'"):
            await refit


@pytest.mark.parametrize("is_finished", [True, False])
async def test_an_update_without_weights_leaves_the_model_as_it_was(worker, trainer, lab, is_finished):
    before = [one.tokens for one in await lab.greedy(worker)]

    assert (await trainer("/start_weight_update"))[0] == 200
    if is_finished:
        assert (await trainer("/finish_weight_update"))[0] == 200
    else:
        await asyncio.sleep(3)  # the trainer is gone; what vLLM opened must be closed again

    assert [one.tokens for one in await lab.greedy(worker)] == before


async def test_fields_of_another_version_are_rejected(worker, trainer, lab):
    before = [one.tokens for one in await lab.greedy(worker)]
    await trainer("/start_weight_update")

    status, text = await trainer("/update_weights", {"update_info": {"names": [], "of_another_version": True}})

    assert status == 400
    assert "of_another_version" in text
    assert "releases of vLLM have different fields" in text
    assert [one.tokens for one in await lab.greedy(worker)] == before
    assert (await trainer("/init_weight_transfer_engine", {"init_info": {"of_another_version": True}}))[0] == 400
