"""Connections of the server, byte by byte."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from patience import HUNG_S

from .conftest import CHAT, KEY


@asynccontextmanager
async def connected(base_url):
    """A connection, byte by byte."""
    place = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        yield reader, writer
    finally:
        writer.close()


def request_of(body):
    content = json.dumps(body).encode()
    lines = ("POST /v1/chat/completions HTTP/1.1", "Host: x", f"Authorization: Bearer {KEY}", "Content-Type: application/json")
    return "\r\n".join((*lines, f"Content-Length: {len(content)}", "", "")).encode() + content


async def test_the_events_of_a_stream_are_sent_at_once(served):
    """Nagle's algorithm would hold them back until the client confirms the one before, 40 ms later."""
    async with connected(served.base_url) as (reader, writer):
        writer.write(request_of({**CHAT, "stream": True}))
        await reader.readuntil(b"[DONE]")
        connections = served.server._uvicorn.server_state.connections
        sockets = [connection.transport.get_extra_info("socket") for connection in connections]
        at_once = [one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in sockets]

    assert at_once
    assert all(at_once)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET /v1/models HTTP/1.1\r\n" + b"X: a\r\n" * 20_000, id="many fields"),
        pytest.param(b"GET /v1/" + b"a" * 100_000, id="a long path"),
        pytest.param(b"no HTTP\r\n\r\n", id="another protocol"),
    ],
)
async def test_large_or_malformed_headers_end_the_connection(served, http, head):
    async with connected(served.base_url) as (reader, writer):
        writer.write(head)
        reply = await asyncio.wait_for(reader.read(1 << 16), HUNG_S)

    assert reply.startswith(b"HTTP/1.1 400 ")
    assert (await http.get("/health")).status_code == 200


async def test_a_request_with_two_lengths_ends_the_connection(served):
    request = request_of(CHAT)
    second = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n\r\n"
    async with connected(served.base_url) as (reader, writer):
        writer.write(request.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 1) + second)
        reply = await asyncio.wait_for(reader.read(), HUNG_S)

    assert reply.startswith(b"HTTP/1.1 400 ")
    assert reply.count(b"HTTP/1.1") == 1
    assert b"both Content-Length and Transfer-Encoding" in reply
