"""An engine from dummy weights generates nothing before its first complete refit: not in Python, not over HTTP."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from patience import HUNG_S

from worker.errors import NotReadyError, RefitRejectedError, TransferError
from worker.refit import Manifest, send_ipc_zmq, tensors

_REASON = r"started from dummy weights .* refit before generating"


@pytest.fixture
async def worker(checkpoint, running):
    server = {"enabled": True, "api_key": "key", "served_model_name": "tiny", "chat_template": "{{ messages[0]['content'] }}"}
    async with running(checkpoint("qwen3"), {"server": server}) as started:
        yield started


@pytest.fixture
async def http(worker):
    base = await worker.report_dp_openai_server_base_url()
    async with httpx.AsyncClient(base_url=base, headers={"Authorization": "Bearer key"}, timeout=HUNG_S) as client:
        yield client


async def answers(http):
    """Status of health, of a chat and of a streamed chat, and what the chats say."""
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    replies = [await http.post("/chat/completions", json={**chat, "stream": stream}) for stream in (False, True)]
    health = await http.get(str(http.base_url).replace("/v1/", "/health"))
    return [health.status_code, *(reply.status_code for reply in replies)], [reply.text for reply in replies]


async def test_a_complete_refit_opens_every_way_to_generate(worker, http, lab, checkpoint):
    trainer, batch = lab.trainer(checkpoint("qwen3")), lab.batch_of(lab.PROMPTS)
    calls = (worker.generate_async, worker.score_async, worker.generate_text_async)

    async def refused():
        for call, data in zip(calls, (batch, batch, {"prompts": ["Hello"]}), strict=True):
            with pytest.raises(NotReadyError, match=_REASON):
                await anext(call(data))
        statuses, texts = await answers(http)
        assert statuses == [503, 503, 503]
        assert all("refit before generating" in text for text in texts)

    await refused()
    await worker.prepare_refit_info_async({"another.weight": ((1,), "float32")})
    with pytest.raises(RefitRejectedError):
        await worker.refit_async(trainer)
    state = dict(tensors(trainer, "parameters"))
    addresses = await worker.report_refit_addresses_async()
    sending = asyncio.create_task(
        asyncio.to_thread(send_ipc_zmq, state.items, addresses, manifest=Manifest.of(state.items()), timeout_s=HUNG_S)
    )
    with pytest.raises(RefitRejectedError, match=f"the engine still cannot generate: the engine {_REASON}"):
        await worker.update_weights_via_ipc_zmq_async()
    with pytest.raises(TransferError, match="refit rejected"):
        await sending
    await refused()
    worker.refitting.announced = None

    await worker.refit_async(trainer)

    assert lab.same_tokens(await lab.greedy(worker), lab.reference(trainer)).passed
    assert (await answers(http))[0] == [200, 200, 200]
