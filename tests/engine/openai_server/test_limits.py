"""What one request may ask for, so that it does not delay all others."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

LONGEST = 256
HELLO = [{"role": "user", "content": "hello there"}]
CHAT = {"messages": HELLO}
WORDS = [f"choice number {number}" for number in range(8000)]
LONG = "hello there " * 10_000
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": LONG}}
PART = {"type": "text", "text": "x"}
TOOL = {"type": "function", "function": {"name": "f", "description": LONG, "parameters": {}}}
TOO_MUCH = {
    "messages": ({"messages": HELLO * 5000}, "server.max_messages = 4096"),
    "very many messages": ({"messages": HELLO * 300_000}, "more than 200000 opening brackets"),
    "parts of one message": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 5000}]},
        "max_messages",
    ),
    "calls of one message": ({"messages": [{"role": "assistant", "tool_calls": [{}] * 5000}]}, "server.max_messages"),
    "a long message": ({"messages": [{"role": "user", "content": LONG}]}, "server.max_prompt_chars = 65536"),
    "many long messages": ({"messages": [{"role": "user", "content": LONG[:2000]}] * 50}, "server.max_prompt_chars"),
    "a long part": ({"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]}, "server.max_prompt_chars"),
    "a long call": ({"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, "server.max_prompt_chars"),
    "a long field that a template may show": ({"messages": [{**HELLO[0], "reasoning": LONG}]}, "server.max_prompt_chars"),
    "a long tool": ({**CHAT, "tools": [TOOL]}, "server.max_prompt_chars"),
    "a long argument of the template": ({**CHAT, "chat_template_kwargs": {"image_url": LONG}}, "server.max_prompt_chars"),
    "choices": ({**CHAT, "n": 2000}, "server.max_choices = 128"),
    "words to choose from": ({**CHAT, "structured_outputs": {"choice": WORDS}}, "server.max_grammar_chars = 65536"),
    "a schema": (
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": WORDS}}}},
        "server.max_grammar_chars",
    ),
    "a prefix": ({**CHAT, "required_prefix_token_ids": [5] * (LONGEST + 1)}, "engine.max_model_len = 256"),
    "a carried prefix": (
        {
            "messages": [
                *HELLO,
                {"role": "assistant", "content": "x", "prompt_token_ids": [5] * 300, "generation_token_ids": []},
            ]
        },
        "engine.max_model_len",
    ),
    "stop tokens": ({**CHAT, "stop_token_ids": [5] * 1_000_001}, "more than 1000000"),
    "numbers of a schema": ({**CHAT, "structured_outputs": {"json": {"enum": [2**70] * 70_000}}}, "server.max_grammar_chars"),
    "brackets": ({**CHAT, "metadata": [[]] * 200_000}, "more than 200000 opening brackets"),
}


@pytest.mark.parametrize("name", TOO_MUCH)
async def test_a_request_for_too_much_is_a_400_that_names_the_limit_and_never_reaches_vllm(http, name, monkeypatch):
    body, told = TOO_MUCH[name]
    reached: list[int] = []
    monkeypatch.setattr("worker.server.serving.Serving.chat", lambda *_: reached.append(1))

    reply = await http.post(
        "/v1/chat/completions", content=msgspec.json.encode(body), headers={"Content-Type": "application/json"}
    )

    assert reply.status_code == 400, reply.text[:500]
    assert told in reply.json()["error"]["message"]
    assert not reached


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": LONG * 25}),
        ("/tokenize", {"messages": HELLO * 5000}),
        ("/detokenize", {"tokens": [5] * 70_000}),
    ],
)
async def test_the_other_routes_have_the_same_limits(http, path, body):
    reply = await http.post(path, json=body)

    assert reply.status_code == 400
    assert ("server.max_" in reply.json()["error"]["message"]) or "tokens has 70000 entries" in reply.json()["error"]["message"]


async def test_limits_can_be_set(second, raw):
    limits = {"max_messages": 2, "max_prompt_chars": 100, "max_choices": 1, "max_grammar_chars": 99}
    refused = (
        {"messages": [*HELLO, *HELLO, *HELLO]},
        {"messages": [{"role": "user", "content": "x" * 101}]},
        {**CHAT, "n": 2},
        {**CHAT, "structured_outputs": {"choice": WORDS[:10]}},
    )
    async with second(**limits) as server, raw(server.base_url) as http:
        for (name, value), body in zip(limits.items(), refused, strict=True):
            reply = await http.post("/v1/chat/completions", json=body)

            assert reply.status_code == 400
            assert f"server.{name} = {value}" in reply.json()["error"]["message"]
        assert (await http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1})).status_code == 200


async def test_what_is_large_but_within_the_limits_is_answered(http):
    """Media and carried ids are no text: only hosts, vLLM and the length of the context limit them."""
    carrying = {"role": "assistant", "content": "x", "prompt_token_ids": [5] * 100, "generation_token_ids": [5] * 100}
    noted = {**carrying, "generation_log_probs": [-0.5] * 100_000, "routed_experts": "x" * 100_000}

    reply = await http.post("/v1/chat/completions", json={"messages": [*HELLO, noted, *HELLO], "n": 16, "max_tokens": 1})

    assert reply.status_code == 200, reply.text
    assert len(reply.json()["choices"]) == 16


async def test_large_requests_are_parsed_outside_of_the_event_loop(http, monkeypatch):
    threads, decode = [], msgspec.json.decode

    def noting(raw):
        threads.append((len(raw) > 100_000, threading.current_thread() is threading.main_thread()))
        return decode(raw)

    monkeypatch.setattr("worker.server.limits.msgspec.json.decode", noting)
    await http.post("/tokenize", json={"prompt": "x"})
    await http.post("/tokenize", json={"prompt": LONG})

    assert threads == [(False, True), (True, False)]


async def test_a_short_prompt_never_waits_for_a_queue_of_long_ones(served, http, settled, monkeypatch):
    """One worker tokenizes for all; long prompts are handed to it one by one."""
    renderer, release = served.llm.renderer, asyncio.Event()
    seen, tokenize = [], renderer.tokenize_prompts_async

    async def noting(prompts, *args, **kwargs):
        seen.append(len(prompts[0]["prompt"]))
        if seen[-1] > 1000:
            await release.wait()
        return await tokenize(prompts, *args, **kwargs)

    monkeypatch.setattr(renderer, "tokenize_prompts_async", noting)
    long = [asyncio.ensure_future(http.post("/tokenize", json={"prompt": LONG[:60_000]})) for _ in range(3)]
    await settled(lambda: seen)
    short = await http.post("/tokenize", json={"prompt": "x"})
    assert seen == [60_000, 1]
    release.set()

    assert [reply.status_code for reply in (short, *await asyncio.gather(*long))] == [200] * 4
    assert seen == [60_000, 1, 60_000, 60_000]
