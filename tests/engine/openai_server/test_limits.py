"""What one request may ask for, so that it does not delay all others."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

HELLO = [{"role": "user", "content": "hello there"}]
CHAT = {"messages": HELLO}
WORDS = [f"choice number {number}" for number in range(8000)]
LONG = "hello there " * 10_000
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": LONG}}
TOOL = {"type": "function", "function": {"name": "f", "description": LONG, "parameters": {}}}
TEXT = "server.max_prompt_chars = 65536"
TOO_MUCH = {
    "messages": ({"messages": [{"role": "user", "content": ""}] * 6000}, TEXT),
    "parts of one message": ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 5000}]}, TEXT),
    "many long messages": ({"messages": [{"role": "user", "content": LONG[:2000]}] * 50}, TEXT),
    "a long part": ({"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]}, TEXT),
    "a long call": ({"messages": [{"role": "assistant", "tool_calls": [CALL]}]}, TEXT),
    "a long field that a template may show": ({"messages": [{**HELLO[0], "reasoning": LONG}]}, TEXT),
    "a long tool": ({**CHAT, "tools": [TOOL]}, TEXT),
    "a long argument of the template": ({**CHAT, "chat_template_kwargs": {"image_url": LONG}}, TEXT),
    "a grammar": ({**CHAT, "structured_outputs": {"choice": WORDS}}, TEXT),
    "a prefix": ({**CHAT, "required_prefix_token_ids": [5] * 70_000}, TEXT),
    "very many messages": ({"messages": HELLO * 300_000}, TEXT),
    "choices": ({**CHAT, "n": 2000}, "server.max_choices = 128"),
}


@pytest.mark.parametrize("name", TOO_MUCH)
async def test_a_request_above_a_limit_is_refused_before_it_reaches_vllm(http, name, monkeypatch):
    body, limit = TOO_MUCH[name]
    reached: list[int] = []
    monkeypatch.setattr("worker.server.serving.Serving.chat", lambda *_: reached.append(1))

    reply = await http.post(
        "/v1/chat/completions", content=msgspec.json.encode(body), headers={"Content-Type": "application/json"}
    )

    assert reply.status_code == 400, reply.text[:500]
    assert limit in reply.json()["error"]["message"]
    assert not reached


@pytest.mark.parametrize(
    ("path", "body"),
    [("/tokenize", {"prompt": LONG}), ("/tokenize", {"messages": HELLO * 5000}), ("/detokenize", {"tokens": [5] * 70_000})],
)
async def test_the_other_routes_have_the_same_limits(http, path, body):
    reply = await http.post(path, json=body)

    assert reply.status_code == 400
    assert TEXT in reply.json()["error"]["message"]


async def test_limits_can_be_set(second, raw):
    limits = {"max_prompt_chars": 100, "max_choices": 1}
    refused = ({"messages": [{"role": "user", "content": "x" * 101}]}, {**CHAT, "n": 2})
    async with second(**limits) as server, raw(server.base_url) as http:
        for (name, value), body in zip(limits.items(), refused, strict=True):
            reply = await http.post("/v1/chat/completions", json=body)

            assert reply.status_code == 400
            assert f"server.{name} = {value}" in reply.json()["error"]["message"]
        assert (await http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1})).status_code == 200


async def test_carried_ids_do_not_count_as_text(http):
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


async def test_a_short_prompt_waits_for_one_long_prompt_at_most(served, http, settled, monkeypatch):
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
