"""Malformed requests: each gets a 4xx in OpenAI's form, and the engine keeps running."""

from __future__ import annotations

import json
import re

import pytest

HELLO = [{"role": "user", "content": "hello there"}]


CHAT = {"messages": HELLO}
MALFORMED = {
    "no JSON": b"{",
    "nothing": b"",
    "no UTF-8": b'{"messages": "\xff"}',
    "no object": b"[]",
    "a number": b"7",
    "nested too deep": b"[" * 100_000,
    "a huge number": b'{"seed": ' + b"9" * 5000 + b"}",
    "NaN": b'{"messages": [], "temperature": NaN}',
    "infinite": b'{"messages": [], "temperature": 1e999}',
    "half a character": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "no messages": {},
    "messages is null": {"messages": None},
    "messages is a number": {"messages": 5},
    "empty messages": {"messages": []},
    "messages are numbers": {"messages": [1]},
    "no role": {"messages": [{"content": "x"}]},
    "content is a number": {"messages": [{"role": "user", "content": 5}]},
    "content is null": {"messages": [{"role": "user", "content": None}]},
    "parts of no type": {"messages": [{"role": "user", "content": [{"kind": "text"}]}]},
    "a picture": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
    "a model that is not there": {**CHAT, "model": "gpt-9"},
    "model is a number": {**CHAT, "model": 9},
    "temperature is a word": {**CHAT, "temperature": "hot"},
    "no tokens": {**CHAT, "max_tokens": 0},
    "fewer than no tokens": {**CHAT, "max_completion_tokens": -5},
    "huge max_tokens": {**CHAT, "max_tokens": 10**9},
    "absurd max_tokens": {**CHAT, "max_tokens": 10**40},
    "no choices": {**CHAT, "n": 0},
    "negative choices": {**CHAT, "n": -1},
    "a million choices": {**CHAT, "n": 1_000_000},
    "more least than most tokens": {**CHAT, "min_tokens": 9, "max_tokens": 3},
    "too many logprobs": {**CHAT, "logprobs": True, "top_logprobs": 100_000},
    "logprobs of a word": {**CHAT, "logprobs": True, "top_logprobs": "all"},
    "prefix is a text": {**CHAT, "required_prefix_token_ids": "1 2 3"},
    "prefix with a negative id": {**CHAT, "required_prefix_token_ids": [1, -1]},
    "prefix outside the vocabulary": {**CHAT, "required_prefix_token_ids": [1, 512]},
    "prefix with an absurd id": {**CHAT, "required_prefix_token_ids": [2**70]},
    "half of carried ids": {"messages": [*HELLO, {"role": "assistant", "content": "x", "prompt_token_ids": [1]}]},
    "carried ids outside the vocabulary": {
        "messages": [*HELLO, {"role": "assistant", "content": "x", "prompt_token_ids": [1], "generation_token_ids": [9999]}]
    },
    "stop id outside the vocabulary": {**CHAT, "stop_token_ids": [2**40]},
    "negative stop id": {**CHAT, "stop_token_ids": [-3]},
    "an empty stop": {**CHAT, "stop": [""]},
    "stop is a mapping": {**CHAT, "stop": {"a": 1}},
    "bias of no id": {**CHAT, "logit_bias": {"x": 1}},
    "bias outside the vocabulary": {**CHAT, "logit_bias": {"99999": 1}},
    "ids to choose from outside the vocabulary": {**CHAT, "allowed_token_ids": [99999]},
    "a seed of no integer": {**CHAT, "seed": 2**80},
    "a template of the client's": {**CHAT, "chat_template": "{{ 1 / 0 }}"},
    "template arguments of no mapping": {**CHAT, "chat_template_kwargs": [1]},
    "structured outputs of a word": {**CHAT, "structured_outputs": "json"},
    "a grammar that is none": {**CHAT, "structured_outputs": {"regex": "("}},
    "an unknown response format": {**CHAT, "response_format": {"type": "poem"}},
    "tools of no kind": {**CHAT, "tools": [{"a": 1}]},
    "a required tool without a parser": {
        **CHAT,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "required",
    },
    "stream options without a stream": json.dumps({**CHAT, "stream_options": {"include_usage": True}}).encode(),
    "both ways to go on": {**CHAT, "continue_final_message": True, "add_generation_prompt": True},
    "a schema that refers to itself without end": {**CHAT, "structured_outputs": {"json": {"$ref": "#"}}},
    "a circle of schemas": {
        **CHAT,
        "structured_outputs": {
            "json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
        },
    },
    "huge extra arguments": {**CHAT, "vllm_xargs": {"a": [2**70]}},
    "a cut of the required prefix": {**CHAT, "required_prefix_token_ids": [1], "truncate_prompt_tokens": 2},
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_gets_a_4xx_that_gives_the_reason(served, http, name, idle):
    body = MALFORMED[name]
    variants = [body] if isinstance(body, bytes) else [json.dumps({**body, "stream": stream}) for stream in (False, True)]

    for content in variants:
        reply = await http.post("/v1/chat/completions", content=content, headers={"Content-Type": "application/json"})

        assert 400 <= reply.status_code < 500, reply.text
        error = reply.json()["error"]
        assert error["code"] == reply.status_code
        assert error["type"] == "invalid_request_error"
        assert len(error["message"]) > 15
    assert not served.llm.errored
    await idle()


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"messages": 5}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"stop": [""]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"structured_outputs": "json"}, "structured_outputs"),
        ({"tools": [{"a": 1}]}, "tools.0.function"),
        ({"vllm_xargs": {"a": {"b": 1}}}, "vllm_xargs.a"),
        ({"vllm_xargs": {"kv_transfer_params": "a"}}, "vllm_xargs.kv_transfer_params"),
        ({"vllm_xargs": {"ec_transfer_params": [1]}}, "vllm_xargs.ec_transfer_params"),
        ({"stream_options": 5}, "stream_options"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
    ],
)
async def test_an_error_names_the_field_as_the_client_wrote_it(http, fields, parameter):
    reply = await http.post("/v1/chat/completions", json={**CHAT, **fields})

    error = reply.json()["error"]
    assert error["code"] == 400
    assert error["param"] == parameter
    assert not re.search(r"[A-Z][a-z]+[A-Z]\w+|\w+Error\b|object has no attribute|parameter=", error["message"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"messages": [], "required_prefix_token_ids": [-1]}),
        ("/tokenize", {"messages": HELLO, "required_prefix_token_ids": [99999]}),
        ("/tokenize", {"prompt": "x", "model": "gpt-9"}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [512]}),
        ("/detokenize", {"tokens": "x"}),
        ("/detokenize", {"tokens": [2**70]}),
    ],
)
async def test_the_other_routes_give_the_reason_too(http, path, body):
    reply = await http.post(path, json=body)

    assert 400 <= reply.status_code < 500
    assert len(reply.json()["error"]["message"]) > 15


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
