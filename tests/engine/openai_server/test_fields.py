"""Odd values in every field of a request, one field at a time: none is a bug of the server, and none leaves anything behind."""

from __future__ import annotations

import asyncio

HELLO = [{"role": "user", "content": "hello there"}]
ODD = [None, -1, 0, 2**70, 1.5, "x", "", [], [1], ["x"], [None], {}, {"a": 1}, {"1": [1]}, True, [{"a": 1}], [[[[1]]]]]
#: More than the engine's messages can hold; vLLM notices once it has noted the request.
NESTED = [
    {"repetition_detection": {"max_pattern_size": 2**70}},
    {"structured_outputs": {"json": {"type": "integer", "maximum": 2**70}}},
    {"vllm_xargs": {"a": [2**70]}},
]
#: How many requests are under way at a time.
_AT_ONCE = 8


async def test_no_value_of_any_field_is_a_500_or_leaves_a_request_behind(served, http, idle):
    from worker.server.serving import ChatRequest

    gate = asyncio.Semaphore(_AT_ONCE)

    async def ask(fields, stream):
        async with gate:
            body = {"messages": HELLO, "max_tokens": 2, "stream": stream, **fields}
            reply = await http.post("/v1/chat/completions", json=body)
            failed = reply.status_code == 200 and '"error"' in reply.text
            return None if reply.status_code < 500 and not failed else (fields, stream, reply.text)

    bodies = [({name: value}, stream) for name in ChatRequest.model_fields for value in ODD for stream in (False, True)]
    bodies += [(fields, stream) for fields in NESTED for stream in (False, True)]
    found = await asyncio.gather(*(ask(*body) for body in bodies))

    assert [bad for bad in found if bad] == []
    assert not served.llm.errored
    await idle()
    assert (await http.post("/v1/chat/completions", json={"messages": HELLO})).status_code == 200
