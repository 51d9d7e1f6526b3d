"""What arrives when on a connection, and what connections are not kept open for."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from patience import HUNG_S

KEY = "open-sesame"
NEW_TOKENS = 16
HELLO = [{"role": "user", "content": "hello there"}]


@asynccontextmanager
async def connected(base_url):
    """A connection, byte by byte."""
    place = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        yield reader, writer
    finally:
        writer.close()


def request_of(body, *, key=KEY):
    content = json.dumps(body).encode()
    lines = ("POST /v1/chat/completions HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", "Content-Type: application/json")
    return "\r\n".join((*lines, f"Content-Length: {len(content)}", "", "")).encode() + content


async def test_the_events_of_a_stream_arrive_one_by_one(served):
    """Nagle's algorithm would hold them back until the client confirms the one before, 40 ms later."""
    async with connected(served.base_url) as (reader, writer):
        writer.write(request_of({"messages": HELLO, "stream": True, "ignore_eos": True}))
        pieces = [await reader.readuntil(b"\r\n\r\n")]
        while b"[DONE]" not in pieces[-1]:
            pieces.append(await reader.read(1 << 20))
        connections = served.server._uvicorn.server_state.connections
        open_sockets = [connection.transport.get_extra_info("socket") for connection in connections]

    with_events = [piece for piece in pieces if b"data: " in piece]
    assert sum(piece.count(b'"content":') for piece in with_events) >= NEW_TOKENS // 2  # bytes that are no character yet wait
    assert len(with_events) > NEW_TOKENS // 2
    assert open_sockets
    assert all(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in open_sockets)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET /v1/models HTTP/1.1\r\nX: " + b"a" * 5000, id="a value without an end"),
        pytest.param(b"GET /v1/models HTTP/1.1\r\n" + b"X: a\r\n" * 1000, id="fields without an end"),
        pytest.param(b"GET /v1/models HTTP/1.1\r\n" + b"X: a\r\n" * 1000 + b"\r\n", id="all at once"),
        pytest.param(b"GET /v1/" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n", id="a long path"),
        pytest.param(
            b"GET /health HTTP/1.1\r\n\r\n" * 3 + b"GET /health HTTP/1.1\r\nX: " + b"a" * 5000, id="the fourth request"
        ),
    ],
)
async def test_headers_that_are_too_large_are_refused_before_anybody_looks_for_a_key(second, head):
    async with second(max_header_kb=2) as server, connected(server.base_url) as (reader, writer):
        step = len(head) if head.endswith(b"\r\n\r\n") else 500
        for start in range(0, len(head), step):
            writer.write(head[start : start + step])
            await asyncio.sleep(0.005)
        reply = await asyncio.wait_for(reader.read(), HUNG_S)

    assert b"HTTP/1.1 431 " in reply
    error = json.loads(reply.rpartition(b"\r\n\r\n")[2])["error"]
    assert (error["code"], error["message"]) == (431, "the request's headers are larger than server.max_header_kb = 2")


async def _slowly(writer):
    for byte in b"GET /v1/models HTTP/1.1\r\nX: " + b"a" * 400:
        if writer.is_closing():
            return
        writer.write(bytes([byte]))
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET /v1/models HT", id="half a line"),
        pytest.param(_slowly, id="a byte now and then"),
        pytest.param(request_of({"messages": HELLO})[:-5], id="most of a body"),
        pytest.param(b"GET /health HTTP/1.1\r\n\r\nGET /health HT", id="half of a second request"),
    ],
)
async def test_a_connection_on_which_no_request_comes_through_is_closed(second, sent):
    async with second(read_timeout_s=0.3) as server, connected(server.base_url) as (reader, writer):
        sending = asyncio.ensure_future(sent(writer)) if callable(sent) else writer.write(sent)
        await asyncio.wait_for(reader.read(), HUNG_S)  # to the end of the connection
        if sending is not None:
            sending.cancel()


async def test_a_reply_may_take_longer_than_a_request_may_take_to_arrive(second, served):
    body = {"messages": HELLO, "max_tokens": 200, "ignore_eos": True}
    async with second(read_timeout_s=0.5) as server, connected(server.base_url) as (reader, writer):
        for _ in range(2):
            await served.worker.pause_async("keep")
            writer.write(request_of(body))
            await asyncio.sleep(1)
            await served.worker.resume_async()
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HUNG_S)
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            reply = json.loads(await reader.readexactly(length))

            assert len(reply["choices"][0]["message"]["generation_token_ids"]) == 200
            await asyncio.sleep(0.6)  # kept alive between two requests
