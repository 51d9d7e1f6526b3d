"""What one request may ask for, so that it does not delay all others."""

from __future__ import annotations

import asyncio
import threading

import msgspec

LONG = "hello there " * 5_000


async def test_large_requests_are_parsed_outside_of_the_event_loop(http, monkeypatch):
    threads, decode = [], msgspec.json.decode

    def noting(raw):
        threads.append((len(raw) > 50_000, threading.current_thread() is threading.main_thread()))
        return decode(raw)

    monkeypatch.setattr("worker.server.app.msgspec.json.decode", noting)
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
    long = [asyncio.ensure_future(http.post("/tokenize", json={"prompt": LONG})) for _ in range(3)]
    await settled(lambda: seen)
    short = await http.post("/tokenize", json={"prompt": "x"})
    assert seen == [60_000, 1]
    release.set()

    assert [reply.status_code for reply in (short, *await asyncio.gather(*long))] == [200] * 4
    assert seen == [60_000, 1, 60_000, 60_000]
