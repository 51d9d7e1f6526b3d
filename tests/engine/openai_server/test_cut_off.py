"""Requests that the engine ends before their replies are complete: an error, never half a reply."""

from __future__ import annotations

import asyncio
import json

import pytest
from patience import settled

from worker.errors import RefitError
from worker.refit.weights.scope import gathered

from .conftest import LONG, raw

#: Plain requests and streams, some of several choices.
ASKED = [{**LONG, "stream": stream, "n": n} for stream in (False, True) for n in (1, 3) for _ in range(4)]


@pytest.fixture
def asking(http):
    """Sends requests; says of each, once it is over, with which error it ended, None for a whole reply."""

    async def one(body):
        reply = await http.post("/v1/chat/completions", json=body)
        if reply.headers["content-type"] == "application/json":
            assert reply.json().get("error", {"code": 200})["code"] == reply.status_code
            return reply.json().get("error")
        events = [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if line.startswith("data: {")]
        ends = [choice["finish_reason"] for event in events for choice in event.get("choices", ()) if choice["finish_reason"]]
        failures = [event["error"] for event in events if "error" in event]
        assert reply.text.endswith("data: [DONE]\n\n")
        assert len(failures) == 1 or ends == ["length"] * body.get("n", 1), reply.text
        return failures[0] if failures else None

    return lambda bodies: [asyncio.create_task(one(body)) for body in bodies]


@pytest.fixture
def under_way(served):
    """Waits until the engine has made some tokens of so many sequences."""
    states = served.llm.output_processor.request_states

    async def wait(sequences):
        await settled(
            lambda: len(states) == sequences and any(state.detokenizer.num_output_tokens() > 3 for state in states.values())
        )

    return wait


async def test_an_aborting_pause_ends_only_what_is_under_way(served, asking, under_way, idle):
    requests = asking(ASKED)
    await under_way(32)

    await served.worker.pause_async("abort")
    late = asking([{**LONG, "max_tokens": 4, "stream": stream} for stream in (False, True)])
    errors = await asyncio.gather(*requests)
    await asyncio.wait(late, timeout=0.3)
    waited = [not request.done() for request in late]
    await served.worker.resume_async()

    assert [error and error["code"] for error in errors] == [503] * len(ASKED)
    assert all("the engine ended the request before its reply was complete" in error["message"] for error in errors)
    assert waited == [True, True]
    assert await asyncio.gather(*late) == [None, None]
    await idle()


async def test_requests_after_a_failed_refit_get_its_reason(
    served, model, lab, asking, under_way, idle, monkeypatch, refit_section
):
    """Until the next refit."""
    policy = lab.trainer(model)

    def broken(state):
        for index, item in enumerate(gathered(state)):
            if index == 6:
                raise RuntimeError("the optimizer has gone")
            yield item

    monkeypatch.setattr("worker.refit.weights.source.gathered", broken)
    refit_section(served.worker.refitting.sender, buffer_mb=0)
    requests = asking(ASKED)
    await under_way(32)
    await served.worker.pause_async("keep")  # on a busy machine they would be complete before the refit begins

    refit = asyncio.create_task(served.worker.refit_async(policy))
    during = asking([LONG, {**LONG, "stream": True}])
    with pytest.raises(RefitError, match="a refit failed half-way"):
        await refit
    errors = [await request for request in (*requests, *during, *asking([LONG, {**LONG, "stream": True}]))]
    reason = served.worker.engine.readiness.problem
    monkeypatch.undo()
    await served.worker.refit_async(policy)
    await served.worker.resume_async()

    assert [error and error["code"] for error in errors] == [503] * len(errors)
    assert {error["message"] for error in errors} == {reason}
    assert "a refit failed half-way" in reason
    assert await asyncio.gather(*asking(ASKED[:1])) == [None]
    await idle()


async def test_a_request_that_takes_too_long_is_a_504(second, served, idle):
    """A stream, too, whose reply has begun before."""
    async with second(request={"timeout_s": 2}) as server, raw(server.base_url) as http:
        await served.worker.pause_async("keep")
        whole, stream = await asyncio.gather(
            *(http.post("/v1/chat/completions", json={**LONG, "stream": stream}) for stream in (False, True))
        )
        await served.worker.resume_async()

    event = json.loads(stream.text.removeprefix("data: ").partition("\n")[0])
    for error in (whole.json()["error"], event["error"]):
        assert error["code"] == 504
        assert "longer than request.timeout_s = 2 s, and was aborted" in error["message"]
        assert "export NRL_VLLM_ASYNC_TIMEOUT_SECONDS=4" in error["message"]
    assert (whole.status_code, whole.json()["error"]["type"]) == (504, "Gateway Timeout")
    await idle()
