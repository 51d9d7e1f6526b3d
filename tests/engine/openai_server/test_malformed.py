"""Malformed requests: each gets a 4xx in OpenAI's form, and the engine keeps running."""

from __future__ import annotations

import asyncio
import json
from itertools import product

import pytest

from .conftest import CHAT, HELLO

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
SAID = {"role": "assistant", "content": "x", "prompt_token_ids": [1]}
MALFORMED = {
    "no JSON": b"{",
    "no object": b"[]",
    "nested too deep": b"[" * 100_000,
    "NaN": b'{"messages": [], "temperature": NaN}',
    "half a character": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "stream options without a stream": json.dumps({**CHAT, "stream_options": {"include_usage": True}}).encode(),
    "no messages": {},
    "a picture": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
    "huge max_tokens": {**CHAT, "max_tokens": 10**9},
    "a million choices": {**CHAT, "n": 1_000_000},
    "too many logprobs": {**CHAT, "logprobs": True, "top_logprobs": 100_000},
    "prefix outside the vocabulary": {**CHAT, "required_prefix_token_ids": [1, 512]},
    "a cut of the required prefix": {**CHAT, "required_prefix_token_ids": [1], "truncate_prompt_tokens": 2},
    "half of carried ids": {"messages": [*HELLO, SAID]},
    "stop id outside the vocabulary": {**CHAT, "stop_token_ids": [2**40]},
    "an empty stop": {**CHAT, "stop": [""]},
    "a grammar that is none": {**CHAT, "structured_outputs": {"regex": "("}},
    "a schema that refers to itself without end": {**CHAT, "structured_outputs": {"json": {"$ref": "#"}}},
    "a huge number in a schema": {**CHAT, "structured_outputs": {"json": {"type": "integer", "maximum": 2**70}}},
    "a required tool without a parser": {**CHAT, "tools": TOOLS, "tool_choice": "required"},
    "both ways to go on": {**CHAT, "continue_final_message": True, "add_generation_prompt": True},
}
ODD = [None, -1, 2**63, 1.5, "", ["x"], {"a": 1}, [[[[1]]]]]


def refused(reply):
    """Whether it is an error of the client's, in OpenAI's form, with a reason."""
    error = reply.json()["error"]
    told = (error["code"], error["type"]) == (reply.status_code, "invalid_request_error") and len(error["message"]) > 15
    return 400 <= reply.status_code < 500 and told


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_gets_a_4xx_that_gives_the_reason(served, http, name, idle):
    body = MALFORMED[name]
    variants = [body] if isinstance(body, bytes) else [json.dumps({**body, "stream": stream}) for stream in (False, True)]

    for content in variants:
        reply = await http.post("/v1/chat/completions", content=content, headers={"Content-Type": "application/json"})

        assert refused(reply), reply.text
    assert not served.llm.errored
    await idle()


async def test_no_value_of_any_field_is_a_500(served, http, idle):
    """No value of any field is a 500 or leaves a request behind."""
    from worker.server.serving import ChatRequest

    gate = asyncio.Semaphore(8)

    async def ask(fields):
        async with gate:
            reply = await http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 2, **fields})
            fine = '"error"' not in reply.text if reply.status_code == 200 else refused(reply)
            return None if fine else (fields, reply.text)

    odd = enumerate(product(ChatRequest.model_fields, ODD))
    bodies = [{"stream": number % 3 == 0, name: value} for number, (name, value) in odd]
    found = await asyncio.gather(*(ask(body) for body in bodies))

    assert [bad for bad in found if bad] == []
    assert not served.llm.errored
    await idle()
    assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"stop": {"a": 1}}, "stop"),
        ({"tools": [{"a": 1}]}, "tools"),
        ({"vllm_xargs": {"kv_transfer_params": "a"}}, "vllm_xargs.kv_transfer_params"),
    ],
)
async def test_an_error_names_the_field(http, fields, parameter):
    reply = await http.post("/v1/chat/completions", json={**CHAT, **fields})

    assert (reply.status_code, reply.json()["error"]["param"]) == (400, parameter)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"messages": HELLO, "required_prefix_token_ids": [99999]}),
        ("/tokenize", {"prompt": "x", "model": "gpt-9"}),
        ("/detokenize", {"tokens": [512]}),
        ("/detokenize", {"tokens": [2**70]}),
    ],
)
async def test_the_other_routes_give_the_reason_too(http, path, body):
    assert refused(await http.post(path, json=body))


async def test_detokenize_returns_the_text_that_was_tokenized(http):
    tokens = (await http.post("/tokenize", json={"prompt": "hello there"})).json()["tokens"]

    assert (await http.post("/detokenize", json={"tokens": tokens})).json()["prompt"] == "hello there"


async def test_another_content_type_or_a_large_body_is_refused(http, second, raw):
    reply = await http.post("/v1/chat/completions", content=b"{}", headers={"Content-Type": "text/plain"})
    async with second(max_body_mb=0.001) as server, raw(server.base_url) as small:
        large = await small.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x" * 2000}]})

    assert reply.status_code == 415
    assert large.status_code == 413
    assert "server.max_body_mb = 0.001" in large.json()["error"]["message"]
