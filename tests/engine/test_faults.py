"""Processes that are killed while somebody waits for them: an error that names them, no hang, nothing left, and a way back."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import tempfile
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
import torch
from patience import HUNG_S, settled, until
from programs import children
from safetensors.torch import save_file

from quirks_core.base import private_folder
from worker.errors import EngineDiedError, GenerationAbortedError, NotReadyError, RefitError, RefitRejectedError
from worker.refit import tensors

#: What the engine's core logs of it.
KILLED = r"the engine died: (.*\n)*.*VllmWorker-0 died unexpectedly"
#: A refit's own limit, which nobody here may wait for.
FOREVER_S = 3600

_VLLMS_SOCKET = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture(scope="module")
def policy(checkpoint, lab, tmp_path_factory):
    """What a trainer would send."""
    model = lab.trainer(checkpoint("qwen3", seed=1))
    file = tmp_path_factory.mktemp("policy") / "weights.safetensors"
    save_file({name: tensor.clone() for name, tensor in tensors(model, "parameters")}, file)
    return model, lab.reference(model), file


@pytest.fixture
def half_way(policy, trainer_process):
    """A trainer that has sent the first tensors to a worker."""

    @asynccontextmanager
    async def start(worker):
        async with trainer_process("ipc_zmq", *await worker.report_refit_addresses_async()) as trainer:
            trainer.send(policy[2], stop_after=6)
            assert await trainer.says() == "half-way"
            yield trainer

    return start


@pytest.fixture(autouse=True)
def nothing_left():
    """No process, socket or folder of ours outlives a test."""
    before = left()
    yield
    with suppress(AssertionError):
        until(lambda: left() <= before, "the end of all that the test started", every_s=0.1)
    assert left() - before == set()
    assert "MODEL_QUIRKS_PLAN" not in os.environ
    assert "VLLM_RPC_BASE_PATH" not in os.environ


def left():
    """Processes below this one, and what lies in the system's folder, vLLM's own sockets included."""
    names = [path.name for path in Path(tempfile.gettempdir()).iterdir()]
    return children() | {name for name in names if name.startswith(("mq-", "model-quirks-")) or _VLLMS_SOCKET.fullmatch(name)}


def pid_of(worker, name):
    return next(ack.pid for ack in worker.receipt.processes if ack.process == name)


async def consumed(worker, lab):
    return [item async for item in worker.generate_async(lab.batch_of(lab.PROMPTS), greedy=True)]


LONG = {
    "engine": {"max_model_len": 1024, "max_num_seqs": 16},
    "sampling": {"max_new_tokens": 900},
    "refit": {"timeout_s": FOREVER_S},
}
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
CHAT = {"messages": [{"role": "user", "content": "hello there"}]}
WITH_A_WORKER_PROCESS = {**LONG, "engine": {**LONG["engine"], "distributed_executor_backend": "mp"}}


async def test_an_engine_killed_in_generation_is_named(checkpoint, running, lab, policy, half_way, under_way):
    """Until a restart."""
    model, reference, _ = policy
    async with running(checkpoint("qwen3"), WITH_A_WORKER_PROCESS) as worker:
        await worker.refit_async(model)
        await worker.prepare_refit_info_async({name: (one.shape, one.dtype) for name, one in model.named_parameters()})
        core, generating = pid_of(worker, "EngineCore"), asyncio.create_task(consumed(worker, lab))
        await under_way(worker, len(lab.PROMPTS))

        os.kill(core, signal.SIGKILL)

        async with asyncio.timeout(HUNG_S):
            with pytest.raises(EngineDiedError, match=rf"EngineCore \(pid {core}\) was killed by SIGKILL; call restart_async"):
                await generating
            with pytest.raises(NotReadyError, match="the engine died"):
                await consumed(worker, lab)
            with pytest.raises(EngineDiedError, match="SIGKILL"):
                await worker.refit_async(model)
            with pytest.raises(EngineDiedError, match="SIGKILL"):
                await worker.reset_prefix_cache_async()

        await worker.restart_async()

        async with asyncio.timeout(HUNG_S):
            with pytest.raises(NotReadyError, match=r"started from dummy weights .* refit before generating"):
                await consumed(worker, lab)
            await _a_dummy_start_wants_every_parameter(worker, model)
            await worker.refit_async(model)
            rows = await lab.greedy(worker)
        assert [row.tokens[: lab.NEW_TOKENS] for row in rows] == [row.tokens for row in reference]
        generating = asyncio.create_task(consumed(worker, lab))
        await under_way(worker, len(lab.PROMPTS))
        await _a_killed_worker_process_ends_a_refit(worker, generating, half_way)


async def _a_dummy_start_wants_every_parameter(worker, model):
    norm = model.model.norm
    model.model.norm = torch.nn.Identity()
    try:
        with pytest.raises(RefitRejectedError, match=r"1 missing: model\.norm\.weight"):  # announced before the restart
            await worker.refit_async(model)
        worker.refitting.announced = None
        with pytest.raises(RefitError, match=r"dummy weights, and the trainer sends nothing for model\.norm\.weight"):
            await worker.refit_async(model)
    finally:
        model.model.norm = norm
    with pytest.raises(NotReadyError, match="refit once more, completely"):
        await anext(worker.generate_text_async({"prompts": ["Hello"]}))


async def _a_killed_worker_process_ends_a_refit(worker, generating, half_way):
    updating = asyncio.create_task(worker.update_weights_via_ipc_zmq_async())
    async with half_way(worker) as trainer, asyncio.timeout(HUNG_S):
        os.kill(pid_of(worker, "EngineCore/VllmWorker-0"), signal.SIGKILL)

        with pytest.raises(EngineDiedError, match=KILLED):
            await updating
        with pytest.raises(EngineDiedError, match=KILLED):
            await generating
        trainer.go_on()
        assert "died or closed its socket half-way" in await trainer.says()


async def test_a_shutdown_ends_what_is_under_way_on_both_sides(checkpoint, running, lab, policy, half_way, under_way):
    model, *_ = policy
    async with running(checkpoint("qwen3"), LONG) as worker:
        await worker.refit_async(model)
        generating = asyncio.create_task(consumed(worker, lab))
        await under_way(worker, len(lab.PROMPTS))
        updating = asyncio.create_task(worker.update_weights_via_ipc_zmq_async())
        waiting = asyncio.create_task(worker.refit_async(model))
        async with half_way(worker) as trainer, asyncio.timeout(HUNG_S):
            assert await worker.shutdown()

            with pytest.raises(GenerationAbortedError, match="generation was aborted: the worker was shut down"):
                await generating
            for refit in (updating, waiting):
                with pytest.raises(EngineDiedError, match="the engine was shut down meanwhile"):
                    await refit
            trainer.go_on()
            ended = await trainer.says()
            assert "given up while waiting" in ended or "died or closed its socket half-way" in ended
            assert await worker.shutdown()


async def test_an_engine_killed_over_http_is_named_in_every_reply(checkpoint, running, tmp_path):
    """To those whose replies had begun, to later ones, and to the trainer whose update was open."""
    server = {"enabled": True, "chat_template": TEMPLATE, "rl_routes": True, "rl_api_key": "the-trainer-s"}
    values = {**LONG, "engine": {**LONG["engine"], "load_format": "auto"}, "server": server}
    async with running(checkpoint("qwen3"), values) as worker:
        core, base = pid_of(worker, "EngineCore"), (await worker.report_dp_openai_server_base_url()).removesuffix("/v1")
        sockets = private_folder.make("mq-", tmp_path)
        info = {"transport": "ipc_zmq", "location": str(sockets)}  # where nobody sends
        options = {"headers": {"Authorization": "Bearer the-trainer-s"}, "timeout": HUNG_S}
        async with httpx.AsyncClient(base_url=base, **options) as http, asyncio.timeout(HUNG_S):

            async def ask(**fields):
                return await http.post("/v1/chat/completions", json={**CHAT, **fields})

            kinds = ({}, {"n": 3}, {"stream": True}, {"stream": True, "n": 3})
            asked = [asyncio.create_task(ask(**fields)) for fields in kinds]
            states = worker.engine.llm.output_processor.request_states
            await settled(
                lambda: len(states) == 8 and all(state.detokenizer.num_output_tokens() > 4 for state in states.values())
            )
            assert (await http.post("/start_weight_update")).status_code == 200
            taking = asyncio.create_task(http.post("/update_weights", json={"update_info": info}))
            await settled(lambda: list(sockets.glob("*.sock")))  # the engine listens then

            os.kill(core, signal.SIGKILL)

            taken = await taking
            finished, started = [await http.post(f"/{step}_weight_update") for step in ("finish", "start")]
            plain, several, *streams = await asyncio.gather(*asked)
            later = [await ask(stream=stream) for stream in (False, True)]
            health = await http.get("/health")

    death = f"EngineCore (pid {core}) was killed by SIGKILL; call restart_async, or make a new worker"
    for reply in (taken, started, plain, several, *later):
        assert reply.status_code == 503
        assert death in reply.json()["error"]["message"]
    assert (finished.status_code, death in finished.json()["error"]["message"]) == (409, True)
    for stream in streams:
        *_, error, done = [line for line in stream.text.splitlines() if line]
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == 503
        assert death in error
        assert done == "data: [DONE]"
    assert (health.status_code, health.content) == (503, b"")
