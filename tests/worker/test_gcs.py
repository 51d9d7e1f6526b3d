"""Ray's control service is lost once it has not answered for a while; one that is back in time is not."""

from __future__ import annotations

import asyncio
import socket

import pytest
from patience import HUNG_S

from worker.group import ranks


@pytest.fixture
async def service():
    """Starts somebody who listens where Ray's control service would; all of them end with the test."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = []

    async def start():
        started.append(await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port))
        return started[-1]

    yield start, f"127.0.0.1:{port}"
    for server in started:
        server.close()
        await server.wait_closed()


async def test_a_service_is_lost_only_if_it_does_not_come_back_in_time(service, monkeypatch):
    start, address = service
    monkeypatch.setattr(ranks, "_LOOK_S", 0.02)
    monkeypatch.setattr(ranks, "_LOST_S", 2.0)
    first = await start()
    watching = asyncio.ensure_future(ranks.lost(address))

    await asyncio.sleep(0.1)
    first.close()
    await first.wait_closed()
    assert not await ranks.answers(address)
    await asyncio.sleep(0.1)
    second = await start()
    await asyncio.sleep(0.1)
    assert await ranks.answers(address)
    assert not watching.done()

    second.close()
    await second.wait_closed()
    async with asyncio.timeout(HUNG_S):
        said = await watching
    assert f"control service (GCS) at {address} has not answered for 2 s" in said
    assert "call shutdown" in said
