"""Processes that are killed while somebody waits for them: an error that names them, no hang, nothing left, and a way back."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest
import torch
from patience import HUNG_S, until
from safetensors.torch import save_file

from quirks_core.base import private_folder
from worker.engine import leftovers
from worker.errors import EngineDiedError, GenerationAbortedError, NotReadyError, RefitError, RefitRejectedError
from worker.refit import tensors

#: What the engine's core logs of it.
KILLED = r"the engine died: (.*\n)*.*VllmWorker-0 died unexpectedly"
#: A refit's own limit, which nobody here may wait for.
FOREVER_S = 3600

_VLLMS_SOCKET = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: Sends some tensors, waits for a line, sends the rest, and says how it ended.
_TRAINER = """
import sys
from safetensors.torch import load_file
from worker.refit import Manifest, send_ipc_zmq

file, *addresses = sys.argv[1:]
weights = load_file(file)

def source():
    for index, item in enumerate(weights.items()):
        if index == 6:
            print("half-way", flush=True)
            sys.stdin.readline()
        yield item

try:
    send_ipc_zmq(source, addresses, manifest=Manifest.of(weights.items()), buffer_bytes=1, timeout_s=3600)
except Exception as error:
    print(f"{type(error).__name__}: {error}", flush=True)
"""


@pytest.fixture(scope="module")
def policy(checkpoint, shared_lab, tmp_path_factory):
    """What a trainer would send."""
    model = shared_lab.trainer(checkpoint("qwen3", seed=1))
    file = tmp_path_factory.mktemp("policy") / "weights.safetensors"
    save_file({name: tensor.clone() for name, tensor in tensors(model, "parameters")}, file)
    return model, shared_lab.reference(model), file


@pytest.fixture
async def trainer(policy):
    """Starts a trainer for a worker and waits until it is half-way; ends it after the test."""
    started = []

    async def start(worker):
        addresses = await worker.report_refit_addresses_async()
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", _TRAINER, policy[2], *addresses]
        process = await asyncio.to_thread(subprocess.Popen, command, stdin=pipe, stdout=pipe, text=True)
        started.append(process)
        async with asyncio.timeout(HUNG_S):
            assert await asyncio.to_thread(process.stdout.readline) == "half-way\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


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
    found = {child for child in psutil.Process().children(recursive=True) if _alive(child)}
    names = [path.name for path in Path(tempfile.gettempdir()).iterdir()]
    return found | {name for name in names if name.startswith(("mq-", "model-quirks-")) or _VLLMS_SOCKET.fullmatch(name)}


def _alive(process):
    try:
        command = " ".join(process.cmdline())
        return process.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in command
    except psutil.NoSuchProcess:
        return False


def pid_of(worker, name):
    return next(ack.pid for ack in worker.receipt.processes if ack.process == name)


async def under_way(worker):
    """Waits until the engine makes tokens."""
    async with asyncio.timeout(HUNG_S):
        while min(await worker.engine.generated_so_far(), default=0) < 5:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.001)


async def consumed(worker, lab):
    return [item async for item in worker.generate_async(lab.batch_of(lab.PROMPTS), greedy=True)]


async def greedy(worker, lab):
    """As many tokens as transformers made."""
    requests = worker.requests
    before, requests.sampling = requests.sampling, requests.sampling.model_copy(update={"max_new_tokens": lab.NEW_TOKENS})
    try:
        return await lab.generate(worker)
    finally:
        requests.sampling = before


async def go_on(process):
    """Lets a trainer send on; returns what it says."""
    process.stdin.write("\n")
    process.stdin.flush()
    return await asyncio.to_thread(process.stdout.readline)


LONG = {
    "engine": {"max_model_len": 1024, "max_num_seqs": 16},
    "sampling": {"max_new_tokens": 900},
    "refit": {"timeout_s": FOREVER_S},
}
WITH_A_WORKER_PROCESS = {**LONG, "engine": {**LONG["engine"], "distributed_executor_backend": "mp"}}


async def test_an_engine_killed_in_generation_is_named(checkpoint, running, lab, policy, shared_lab, trainer):
    """An engine that is killed while it generates is named until a restart."""
    model, reference, _ = policy
    async with running(checkpoint("qwen3"), WITH_A_WORKER_PROCESS) as worker:
        await worker.refit_async(model)
        await worker.prepare_refit_info_async({name: (one.shape, one.dtype) for name, one in model.named_parameters()})
        core, generating = pid_of(worker, "EngineCore"), asyncio.create_task(consumed(worker, lab))
        await under_way(worker)
        segments = (Path(os.environ["MODEL_QUIRKS_FOLDER"]) / "shared-memory").read_text().split()
        assert segments

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
        assert not [name for name in segments if (leftovers.PLACE / name).exists()]

        async with asyncio.timeout(HUNG_S):
            with pytest.raises(NotReadyError, match=r"started from dummy weights .* refit before generating"):
                await consumed(worker, lab)
            await _a_dummy_start_wants_every_parameter(worker, model)
            await worker.refit_async(model)
            outcome = shared_lab.same_tokens(await greedy(worker, lab), reference)
        assert outcome.passed, outcome
        await _many_long_requests_take_a_refit_in_the_middle(worker, model, lab)
        await _a_killed_worker_process_ends_a_refit(worker, lab, trainer)


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


async def _many_long_requests_take_a_refit_in_the_middle(worker, model, lab):
    """More than the engine runs at once, so that some wait and some run when it comes."""
    total, longest = 64, 200
    prompts = [tuple((7 * index * place + 11) % 500 + 5 for place in range(5 + index)) for index in range(total)]
    sampling = worker.requests.sampling.model_copy(update={"max_new_tokens": longest})
    found = []

    async def generate():
        async for index, output in worker.generate_async(lab.batch_of(prompts), sampling=sampling):
            found.append((len(output["output_ids"][0]) - len(prompts[index]), output["weight_versions"][0]))

    generating = asyncio.create_task(generate())
    async with asyncio.timeout(HUNG_S):
        while sum(made > 5 for made in await worker.engine.generated_so_far()) < 8:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.001)
    await worker.refit_async(model, version="middle")
    await generating

    assert [length for length, _ in found] == [longest] * total
    for _, spans in found:
        assert [start for _, start, _ in spans] == [0, *(end for _, _, end in spans[:-1])]
        assert spans[-1][0::2] == ("middle", longest)
    assert {len(spans) for _, spans in found} == {1, 2}


async def _a_killed_worker_process_ends_a_refit(worker, lab, trainer):
    generating = asyncio.create_task(consumed(worker, lab))
    await under_way(worker)
    updating = asyncio.create_task(worker.update_weights_via_ipc_zmq_async())
    process = await trainer(worker)

    os.kill(pid_of(worker, "EngineCore/VllmWorker-0"), signal.SIGKILL)

    async with asyncio.timeout(HUNG_S):
        with pytest.raises(EngineDiedError, match=KILLED):
            await updating
        with pytest.raises(EngineDiedError, match=KILLED):
            await generating
        assert "died or closed its socket half-way" in await go_on(process)


async def test_an_engine_killed_in_a_refit_ends_it_on_both_sides(checkpoint, running, lab, policy, shared_lab, trainer):
    model, reference, _ = policy
    async with running(checkpoint("qwen3"), LONG) as worker:
        await worker.refit_async(model)
        generating = asyncio.create_task(consumed(worker, lab))
        await under_way(worker)
        updating = asyncio.create_task(worker.update_weights_via_ipc_zmq_async())
        process = await trainer(worker)

        os.kill(pid_of(worker, "EngineCore"), signal.SIGKILL)

        async with asyncio.timeout(HUNG_S):
            with pytest.raises(EngineDiedError, match="was killed by SIGKILL"):
                await updating
            with pytest.raises(EngineDiedError, match="was killed by SIGKILL"):
                await generating
            await worker.shutdown()
            assert "died or closed its socket half-way" in await go_on(process)

    async with running(checkpoint("qwen3"), LONG) as worker:
        async with asyncio.timeout(HUNG_S):
            await worker.refit_async(model)
            outcome = shared_lab.same_tokens(await greedy(worker, lab), reference)
        assert outcome.passed, outcome
        await _a_shutdown_ends_what_is_under_way(worker, lab, model, trainer)


async def test_an_engine_killed_in_an_update_over_http_is_named(checkpoint, running, tmp_path):
    """An engine that is killed during an update over HTTP is named to the trainer."""
    routes = {"server": {"enabled": True, "rl_routes": True, "rl_api_key": "the-trainer-s"}}
    async with running(checkpoint("qwen3"), {**LONG, **routes}) as worker:
        core, base = pid_of(worker, "EngineCore"), (await worker.report_dp_openai_server_base_url()).removesuffix("/v1")
        sockets = private_folder.make("mq-", tmp_path)
        info = {"transport": "ipc_zmq", "location": str(sockets)}  # where nobody sends
        options = {"headers": {"Authorization": "Bearer the-trainer-s"}, "timeout": HUNG_S}
        async with httpx.AsyncClient(base_url=base, **options) as http, asyncio.timeout(HUNG_S):
            assert (await http.post("/start_weight_update")).status_code == 200
            taking = asyncio.create_task(http.post("/update_weights", json={"update_info": info}))
            while not list(sockets.glob("*.sock")):  # noqa: ASYNC110 - the engine listens then
                await asyncio.sleep(0.01)

            os.kill(core, signal.SIGKILL)

            taken, finished, started = (
                await taking,
                await http.post("/finish_weight_update"),
                await http.post("/start_weight_update"),
            )

    said = rf"EngineCore \(pid {core}\) was killed by SIGKILL; call restart_async"
    for reply, status in ((taken, 503), (finished, 409), (started, 503)):
        assert reply.status_code == status
        assert re.search(said, reply.json()["error"]["message"])


async def _a_shutdown_ends_what_is_under_way(worker, lab, model, trainer):
    generating = asyncio.create_task(consumed(worker, lab))
    await under_way(worker)
    updating = asyncio.create_task(worker.update_weights_via_ipc_zmq_async())
    waiting = asyncio.create_task(worker.refit_async(model))
    process = await trainer(worker)

    async with asyncio.timeout(HUNG_S):
        assert await worker.shutdown()

        with pytest.raises(GenerationAbortedError, match="generation was aborted: the worker was shut down"):
            await generating
        for refit in (updating, waiting):
            with pytest.raises(EngineDiedError, match="the engine was shut down meanwhile"):
                await refit
        ended = await go_on(process)
        assert "given up while waiting" in ended or "died or closed its socket half-way" in ended
        assert await worker.shutdown()
