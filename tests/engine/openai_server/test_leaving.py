"""Clients that leave in the middle, and servers that stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import httpx
import psutil
import pytest
from patience import HUNG_S, settled

from .conftest import CHAT, KEY, LONG, raw


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_takes_its_request_along(http, served, aborted, idle, stream):
    waiting = asyncio.create_task(http.post("/v1/chat/completions", json={**LONG, "n": 4, "stream": stream}))
    await settled(lambda: served.llm.output_processor.get_num_unfinished_requests() > 0)
    waiting.cancel()
    await settled(lambda: aborted)
    await idle()


async def test_100_streams_complete_while_100_others_leave_no_trace(served, idle):
    tasks = len(asyncio.all_tasks())
    async with httpx.AsyncClient(
        base_url=served.base_url.removesuffix("/v1"),
        headers={"Authorization": f"Bearer {KEY}"},
        timeout=HUNG_S,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
    ) as http:

        async def stream(index):
            most = LONG["max_tokens"] if index % 2 else 64
            body = {"messages": [{"role": "user", "content": f"stream {index}"}], "stream": True, "max_tokens": most}
            events = []
            async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
                assert reply.status_code == 200
                async for line in reply.aiter_lines():
                    events += [line.removeprefix("data: ")] if line else []
                    if index % 2 and len(events) == 1 + index // 2 % 2:
                        return None  # leaves in the middle, after the first or the second event
            return events

        done = await asyncio.gather(*(stream(index) for index in range(200)))

    stayed = [events for events in done if events is not None]
    assert len(stayed) == 100
    for events in stayed:
        assert events[-1] == "[DONE]"
        assert len(json.loads(events[-2])["choices"][0]["delta"]["generation_token_ids"]) == 64
    await idle()
    await settled(lambda: len(asyncio.all_tasks()) <= tasks)
    port = int(served.base_url.rpartition(":")[2].removesuffix("/v1"))
    await settled(lambda: not _connections(port))


async def test_stopping_in_bounded_time_leaves_nothing_behind(second, served, idle, monkeypatch):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    before = asyncio.all_tasks()
    monkeypatch.setattr("worker.server.server._SHUTDOWN_S", 0)
    async with second() as server, raw(server.base_url) as http:
        port = int(server.base_url.rpartition(":")[2].removesuffix("/v1"))
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
        waiting = asyncio.create_task(http.post("/v1/chat/completions", json={**LONG, "n": 4}))
        await settled(lambda: served.llm.output_processor.get_num_unfinished_requests() > 0)

        await server.stop()
        await server.stop()

        await idle()
        assert not _connections(port, "LISTEN")
        await asyncio.gather(waiting, return_exceptions=True)
        with pytest.raises(httpx.ConnectError):
            await http.get("/health")
    async with second(port=port) as again:
        assert again.base_url == f"http://127.0.0.1:{port}/v1"
    await settled(lambda: not [task for task in asyncio.all_tasks() - before if not task.done()])


async def test_running_requests_get_their_time_when_the_server_stops(second, served):
    async with second() as server, raw(server.base_url) as http:
        waiting = asyncio.create_task(http.post("/v1/chat/completions", json=CHAT))
        await settled(lambda: served.llm.output_processor.get_num_unfinished_requests() > 0)

        await server.stop()

        assert (await waiting).status_code == 200


def _connections(port, *states):
    """This process's sockets on a port."""
    found = [item for item in psutil.Process(os.getpid()).net_connections("tcp") if item.laddr and item.laddr.port == port]
    return [item for item in found if (item.status in states if states else item.status != "LISTEN")]
