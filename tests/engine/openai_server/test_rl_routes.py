"""The routes for trainers: who may use them, what they do at the wrong time, and what is left when something fails."""

from __future__ import annotations

import asyncio
import base64
import threading

import pytest
from patience import HUNG_S, patience, settled

from quirks_core.base import private_folder
from worker.refit import Source, send_ipc_zmq

from .conftest import KEY, LONG, raw

TRAINER_KEY = "open-barley"


@pytest.fixture
async def trainer(second):
    """A client of the routes."""
    async with second(rl_routes=True, rl_api_key=TRAINER_KEY) as server, raw(server.base_url, TRAINER_KEY) as http:
        yield http


@pytest.fixture
def limit(served, refit_section):
    """Changes how long the engine waits for a trainer."""
    return lambda seconds: refit_section(served.worker.refitting.sender, timeout_s=seconds)


@pytest.fixture
def sockets():
    with private_folder.temporary("mq-") as folder:
        yield folder


@pytest.fixture
def update(trainer, lab, model, sockets):
    """Sends the model's own weights as a part of the open update."""
    policy = lab.trainer(model)

    async def send():
        info = {"transport": "ipc_zmq", "location": str(sockets)}
        source = Source(policy, "parameters")
        where, replied = [f"{sockets}/rank-0.sock"], threading.Event()
        options = {"device": "cpu", "timeout_s": HUNG_S, "given_up": replied.is_set}
        sending = asyncio.create_task(asyncio.to_thread(send_ipc_zmq, source, where, **options))
        reply = await step(trainer, "update_weights", {"update_info": info})
        replied.set()
        await asyncio.gather(sending, return_exceptions=True)
        return reply

    return send


async def step(http, name, body=None):
    reply = await http.post(f"/{name}", json=body)
    return reply.status_code, reply.json()


async def chat(http, **more):
    return await http.post("/v1/chat/completions", json={**LONG, **more})


async def test_they_need_a_key_of_their_own(second):
    """It opens everything else, too."""
    async with second(rl_routes=True, rl_api_key=TRAINER_KEY) as server:
        assert server.rl_api_key.get_secret_value() == TRAINER_KEY
        password = base64.b64encode(f":{TRAINER_KEY}".encode()).decode()
        headers = {
            f"Bearer {KEY}": 401,
            f"Bearer {TRAINER_KEY}": 200,
            f"Basic {password}": 200,
            "Basic !": 401,
            f"Digest {TRAINER_KEY}": 401,
        }
        async with raw(server.base_url, None) as http:
            assert (await http.get("/is_paused")).status_code == 401
            for header, status in headers.items():
                assert (await http.get("/is_paused", headers={"Authorization": header})).status_code == status
        async with raw(server.base_url, TRAINER_KEY) as http:
            assert (await chat(http, max_tokens=2)).status_code == 200
            for path in ("collective_rpc", "v1/responses", "inference/v1/generate", "scale_elastic_ep"):
                assert (await http.post(f"/{path}", json={})).status_code == 404


async def test_a_pause_without_a_mode_keeps_what_is_in_flight(served, trainer, idle):
    """And its reply says so."""
    asked = [asyncio.create_task(chat(trainer)) for _ in range(2)]
    await settled(lambda: served.llm.output_processor.get_num_unfinished_requests() == 2)

    kept = await trainer.post("/pause")
    named = await trainer.post("/pause?mode=keep")
    await trainer.post("/resume")
    replies = await asyncio.gather(*asked)

    assert kept.headers["model-quirks-pause"].startswith("keep ")
    assert "model-quirks-pause" not in named.headers
    assert [reply.json()["choices"][0]["finish_reason"] for reply in replies] == ["length"] * 2
    await idle()


@pytest.mark.parametrize("path", ["/pause?mode=abort", "/abort_requests"])
async def test_what_a_trainer_aborts_is_an_error(served, trainer, idle, path):
    """It is no short sample."""
    completion = {"model": "tiny", "prompt": [[5, 6, 7], [8, 9]], "max_tokens": 200, "n": 2, "ignore_eos": True}
    asked = [asyncio.create_task(chat(trainer)), asyncio.create_task(trainer.post("/v1/completions", json=completion))]
    await settled(lambda: served.llm.output_processor.get_num_unfinished_requests() == 5)

    await trainer.post(path, json={})
    replies = await asyncio.gather(*asked)
    await trainer.post("/resume")

    assert [reply.status_code for reply in replies] == [503, 503]
    assert all("before its reply was complete" in reply.json()["error"]["message"] for reply in replies)
    await idle()


async def test_a_part_that_comes_after_the_end_is_refused(trainer, update):
    assert (await step(trainer, "start_weight_update"))[0] == 200
    assert (await update())[0] == 200

    end = asyncio.create_task(step(trainer, "finish_weight_update"))
    await asyncio.wait((end,), timeout=0.01)
    late = await step(trainer, "update_weights", {"update_info": {}})

    assert (await end)[0] == 200
    assert late[0] == 409


async def test_an_open_update_excludes_other_changes(served, trainer, update):
    assert (await step(trainer, "start_weight_update"))[0] == 200

    for path in ("start_weight_update", "pause", "resume", "sleep", "wake_up"):
        status, body = await step(trainer, path)
        assert (status, body["error"]["code"]) == (409, 409)
        assert "a weight update is open: finish it first" in body["error"]["message"]
    assert (await step(trainer, "init_weight_transfer_engine", {"init_info": {}}))[0] == 409
    refit = asyncio.create_task(served.worker.update_weights_via_ipc_zmq_async())
    await asyncio.wait((refit,), timeout=0.3)
    waits = not refit.done()
    refit.cancel()
    assert (await update())[0] == 200
    assert (await step(trainer, "finish_weight_update", {"weight_version": "s1"}))[0] == 200

    assert waits
    assert (await trainer.get("/is_paused")).json() == {"is_paused": False}
    assert (await trainer.get("/weight_info")).json() == {"weight_version": "s1"}
    assert served.worker.last_refit.version == "s1"


async def test_an_update_whose_trainer_is_gone_is_given_up(served, trainer, limit, idle):
    """Requests take no harm."""
    limit(1.0)
    assert (await step(trainer, "start_weight_update"))[0] == 200
    asked = asyncio.create_task(chat(trainer, max_tokens=4))

    reply = await asked

    assert reply.status_code == 200
    status, body = await step(trainer, "finish_weight_update")
    assert status == 409
    given_up = "the weight update was given up: no call came for 1 s (refit.timeout_s)"
    assert given_up in body["error"]["message"]
    assert any(text.startswith(given_up) for text in served.worker.warnings)
    assert (await step(trainer, "start_weight_update"))[0] == 200
    assert (await step(trainer, "finish_weight_update"))[0] == 200
    await idle()


async def test_an_engine_that_waits_for_its_trainer_answers(trainer, limit, sockets, idle):
    """And it stops in time."""
    limit(patience(3.0))
    version = (await trainer.get("/weight_info")).json()
    assert (await step(trainer, "start_weight_update"))[0] == 200
    info = {"transport": "ipc_zmq", "location": str(sockets), "timeout_s": 600.0}
    taking = asyncio.create_task(step(trainer, "update_weights", {"update_info": info}))
    asked = asyncio.create_task(chat(trainer, max_tokens=2))
    await settled(lambda: list(sockets.glob("*.sock")))  # the engine listens then

    meanwhile = [(await trainer.get(path)).json() for path in ("/is_paused", "/weight_info")]
    finished = await step(trainer, "finish_weight_update")
    answered_first = not taking.done()
    status, body = await taking

    assert answered_first
    assert meanwhile == [{"is_paused": True}, version]
    assert (finished[0], "finish it when update_weights has returned" in finished[1]["error"]["message"]) == (409, True)
    assert status == 500
    assert f"did not answer within refit.timeout_s = {patience(3.0):g} s" in body["error"]["message"]
    assert (await asked).status_code == 200
    await idle()


async def test_sockets_are_made_in_folders_of_ours_alone(trainer, tmp_path, idle):
    (tmp_path / "rank-0.sock").write_text("somebody's")
    tmp_path.chmod(0o700)
    assert (await step(trainer, "start_weight_update"))[0] == 200

    info = {"transport": "ipc_zmq", "location": str(tmp_path)}
    status, body = await step(trainer, "update_weights", {"update_info": info})

    assert status == 400
    assert "is no folder for this user's sockets" in body["error"]["message"]
    assert (tmp_path / "rank-0.sock").read_text() == "somebody's"
    await idle()


async def test_a_trainer_that_ends_in_the_middle_is_told_of(served, trainer, update, limit, idle, monkeypatch):
    """Another one begins at once, whatever the engine has still to end."""
    resume = type(served.llm).resume_generation

    async def slow(llm):
        await asyncio.sleep(1)
        await resume(llm)

    monkeypatch.setattr(type(served.llm), "resume_generation", slow)
    enough = patience(10.0)  # for the part that comes
    limit(enough)
    await step(trainer, "start_weight_update")
    assert (await update())[0] == 200

    assert (await chat(trainer)).status_code == 503  # it waited in the engine, which gave the update up
    reply = await chat(trainer)

    assert reply.status_code == 503
    assert f"no call came for {enough:g} s" in reply.json()["error"]["message"]
    limit(120.0)
    steps = [await step(trainer, "start_weight_update"), await update(), await step(trainer, "finish_weight_update")]
    assert [status for status, _ in steps] == [200] * 3, steps
    assert (await chat(trainer, max_tokens=2)).status_code == 200
    await idle()


async def test_what_the_platform_cannot_do_is_refused(trainer):
    """With the worker's reason."""
    status, body = await step(trainer, "sleep")

    assert status == 400
    assert "vLLM's CPU platform cannot give memory back" in body["error"]["message"]


async def test_the_pause_of_earlier_releases_is_one(served):
    """Routes of vLLM before 0.32 hand on an argument more."""
    client = served.worker._parts.trainer_client

    await client.pause_generation(mode="keep", clear_cache=True, wait_for_inflight_requests=False)
    paused = await client.is_paused()
    await client.resume_generation()

    assert (paused, await client.is_paused()) == (True, False)
