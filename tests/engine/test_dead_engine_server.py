"""The server of an engine that is killed while it answers: the worker's own words, and no client waits."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import httpx
from patience import HUNG_S

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
VALUES = {
    "engine": {"load_format": "auto", "max_model_len": 1024},
    "sampling": {"max_new_tokens": 900},
    "server": {"enabled": True, "chat_template": TEMPLATE},
}
BODY = {"messages": [{"role": "user", "content": "hello there"}]}


async def test_every_reply_of_a_dead_engine_says_what_the_worker_says(checkpoint, running):
    async with running(checkpoint("qwen3"), VALUES) as worker:
        url = (await worker.report_dp_openai_server_base_url()).removesuffix("/v1")
        headers = {"Authorization": f"Bearer {worker.openai_api_key}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=HUNG_S) as http:

            async def ask(**fields):
                return await http.post("/v1/chat/completions", json={**BODY, **fields})

            asked = [
                asyncio.create_task(ask(**fields)) for fields in ({}, {"n": 3}, {"stream": True}, {"stream": True, "n": 3})
            ]
            states = worker.engine.llm.output_processor.request_states
            while len(states) < 8 or any(state.detokenizer.num_output_tokens() < 5 for state in states.values()):  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.001)
            core = next(ack.pid for ack in worker.receipt.processes if ack.process == "EngineCore")

            os.kill(core, signal.SIGKILL)

            plain, several, *streams = await asyncio.gather(*asked)
            later = [await ask(stream=stream) for stream in (False, True)]
            health = await http.get("/health")

    death = f"EngineCore (pid {core}) was killed by SIGKILL; call restart_async, or make a new worker"
    for reply in (plain, several, *later):
        assert reply.status_code == 503
        assert death in reply.json()["error"]["message"]
    for stream in streams:
        *_, error, done = [line for line in stream.text.splitlines() if line]
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == 503
        assert death in error
        assert done == "data: [DONE]"
    assert (health.status_code, health.content) == (503, b"")
