"""Malformed requests: each gets an error of OpenAI's form, and the engine keeps running."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from itertools import product

import pytest

from .conftest import CHAT, HELLO

SAID = {"role": "assistant", "content": "x", "prompt_token_ids": [1]}
MALFORMED = {
    "no JSON": ("/v1/chat/completions", b"{"),
    "no object": ("/v1/chat/completions", b"[]"),
    "a picture": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    "prefix outside the vocabulary": ("/v1/chat/completions", {**CHAT, "required_prefix_token_ids": [1, 512]}),
    "half of carried ids": ("/v1/chat/completions", {"messages": [*HELLO, SAID]}),
    "stop id outside the vocabulary": ("/v1/chat/completions", {**CHAT, "stop_token_ids": [2**40]}),
    "half a character": ("/v1/chat/completions", {**CHAT, "stop": ["\ud800"]}),
    "a grammar that is none": ("/v1/chat/completions", {**CHAT, "structured_outputs": {"regex": "("}}),
    "a required tool without a parser": ("/v1/chat/completions", {**CHAT, "tool_choice": "required"}),
    "nothing to tokenize": ("/tokenize", {}),
    "another model": ("/tokenize", {"prompt": "x", "model": "gpt-9"}),
    "ids outside the vocabulary": ("/detokenize", {"tokens": [2**70]}),
}
ODD = [None, -1, 2**63, 1.5, "", ["x"], {"a": 1}, [[[[1]]]]]
JSON = {"Content-Type": "application/json"}


def refused(reply):
    """Whether it is an error of the client's, in OpenAI's form, with a reason."""
    error = reply.json()["error"]
    phrase = HTTPStatus(reply.status_code).phrase
    is_typed = error["type"] in (phrase, f"{phrase.replace(' ', '')}Error")  # vLLM's handlers have the second
    told = error["code"] == reply.status_code and is_typed and len(error["message"]) > 15
    return 400 <= reply.status_code < 500 and told


@pytest.mark.parametrize(("path", "body"), MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_request_gets_a_4xx_that_gives_the_reason(served, http, path, body, idle):
    reply = await http.post(path, content=body if isinstance(body, bytes) else json.dumps(body), headers=JSON)

    assert refused(reply), reply.text
    assert not served.llm.errored
    await idle()


async def test_a_stream_that_the_engine_refuses_ends_with_the_reason(http, idle):
    """The reply has begun then: it is an event, as in vLLM's own server."""
    reply = await http.post("/v1/chat/completions", json={**CHAT, "stream": True, "structured_outputs": {"regex": "("}})

    error = json.loads(reply.text.removeprefix("data: ").partition("\n")[0])["error"]
    assert (error["code"], reply.text.endswith("data: [DONE]\n\n")) == (400, True)
    await idle()


async def test_no_value_of_any_field_harms_the_engine(served, http):
    """Each reply has OpenAI's form, and the engine generates afterwards."""
    from worker.server.serving import ChatRequest

    gate = asyncio.Semaphore(8)

    async def ask(fields):
        async with gate:
            reply = await http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 2, **fields})
            fine = reply.status_code == 200 or reply.json()["error"]["code"] == reply.status_code
            return None if fine else (fields, reply.text)

    odd = enumerate(product(ChatRequest.model_fields, ODD))
    found = await asyncio.gather(*(ask({"stream": number % 3 == 0, name: value}) for number, (name, value) in odd))

    assert [bad for bad in found if bad] == []
    assert not served.llm.errored
    assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200


@pytest.mark.parametrize(("field", "value"), [("messages", [{"role": "user", "content": 5}]), ("stop", {}), ("tools", [{}])])
async def test_an_error_names_the_field(http, field, value):
    reply = await http.post("/v1/chat/completions", json={**CHAT, field: value})

    assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)


async def test_detokenize_returns_the_text_that_was_tokenized(http):
    tokens = (await http.post("/tokenize", json={"prompt": "hello there"})).json()["tokens"]

    assert (await http.post("/detokenize", json={"tokens": tokens})).json()["prompt"] == "hello there"


async def test_another_content_type_is_refused(http):
    """A browser sends it to another origin without asking."""
    assert refused(await http.post("/v1/chat/completions", content=json.dumps(CHAT), headers={"Content-Type": "text/plain"}))
