"""Refits from a trainer's own process by CUDA IPC and by NCCL, sleep at both levels, and CUDA graphs over all of it.

The model has a persistent buffer (Gemma-4), so that one that is lost shows. CI has no GPU; docs/results/gpu.md has the last
results.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import torch

from quirks_core.facts.packages import gpu_capability
from worker import VllmAsyncGenerationWorker
from worker.batch import padded
from worker.errors import NotReadyError, RefitError
from worker.lab.kit import checkpoints
from worker.lab.parity.session import running
from worker.refit.transport.channel import free_port

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

PROMPTS = (tuple(range(3, 27)), (100, 200, 300, 400, 50, 60, 70), tuple((7 * i * i + 11) % 500 + 5 for i in range(40)))
_TRAINER = """
    import os, sys, torch
    from transformers import AutoModelForCausalLM
    from worker.refit import CollectiveSender, Source, send_ipc_zmq
    from worker.refit.transport.group import Group

    def then_die(broadcast):
        left = [None] * 3
        def some(group, memory):
            broadcast(group, memory)
            left.pop()
            if not left:
                torch.cuda.synchronize()  # they have left this process
                os._exit(9)
        return some

    how, model, device, *where = sys.argv[1:]
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).to(device)
    source = Source(policy, "state_dict")
    if how == "ipc_zmq":
        send_ipc_zmq(source, where, device=device, buffer_bytes=1 << 16)
    else:
        sender = CollectiveSender("127.0.0.1", int(where[0]), world_size=2, device=device)
        sender.send(source, buffer_bytes=1 << 16)
        if how == "dies":
            Group.broadcast_weights = then_die(Group.broadcast_weights)
        sender.send(source, buffer_bytes=1 << 16)
        sender.close()
"""


def trainer(how, model, device, *where):
    """A trainer in a process of its own."""
    code = textwrap.dedent(_TRAINER)
    return subprocess.Popen([sys.executable, "-c", code, how, str(model), device, *map(str, where)])


async def tokens(worker):
    outputs = worker.generate_async(padded(PROMPTS), greedy=True)
    found = {index: output["output_ids"][0].tolist() async for index, output in outputs}
    return [found[index] for index in range(len(PROMPTS))]


@asynccontextmanager
async def engine(model, **values) -> AsyncIterator[VllmAsyncGenerationWorker]:
    options = {
        "dtype": "bfloat16",  # the checkpoint's is float32
        "max_model_len": 256,
        "gpu_memory_utilization": 0.2,
        "kv_cache_memory_bytes": 12 << 30,  # not measured, so that other programs may use the GPUs meanwhile
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
        **values,
    }
    sampling = {"max_new_tokens": 24, "ignore_eos": True}
    config = {"model": str(model), "engine": options, "sampling": sampling}
    async with running(VllmAsyncGenerationWorker(config)) as worker:
        yield worker


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return SimpleNamespace(
        a=checkpoints.build("gemma4", folder / "a", seed=0), b=checkpoints.build("gemma4", folder / "b", seed=1)
    )


def policy(model, device="cuda:0"):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).to(device)


@pytest.fixture(scope="module")
async def expected(models):
    """What engines make that loaded the checkpoints."""
    found = []
    for model in (models.a, models.b):
        async with engine(model, load_format="auto") as worker:
            found.append(await tokens(worker))
    return SimpleNamespace(a=found[0], b=found[1])


@pytest.fixture(scope="module")
async def worker(models, expected):  # noqa: ARG001  # one engine at a time
    """The engine of every test here: from dummy weights, with CUDA graphs, and able to sleep."""
    async with engine(models.a, enable_sleep_mode=True) as started:
        yield started


async def test_every_process_acknowledges_the_plan_on_this_gpu(worker):
    major, minor = torch.cuda.get_device_capability()

    assert [one.process for one in worker.receipt.processes][:2] == ["MainProcess", "EngineCore"]
    assert gpu_capability() == 10 * major + minor


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
async def test_a_trainer_s_process_refits_by_shared_memory(worker, models, expected, device):
    for model, wanted in ((models.b, expected.b), (models.a, expected.a), (models.b, expected.b)):
        process = trainer("ipc_zmq", model, device, *await worker.report_refit_addresses_async())
        assert await worker.update_weights_via_ipc_zmq_async(version=model.name)

        assert process.wait(60) == 0
        assert await tokens(worker) == wanted


@two_gpus
async def test_a_trainer_s_process_on_another_gpu_refits_by_nccl(worker, models, expected):
    await worker.refit_async(policy(models.a))
    port = free_port("127.0.0.1")
    process = trainer("collective", models.b, "cuda:1", port)
    await worker.init_collective_async(0, "127.0.0.1", port, world_size=2, train_world_size=1)
    for _ in range(2):
        assert await worker.update_weights_from_collective_async()

    assert process.wait(60) == 0
    assert await tokens(worker) == expected.b


@two_gpus
async def test_an_engine_survives_a_trainer_that_dies_in_a_refit(worker, models, expected, monkeypatch):
    short = worker.config.refit.model_copy(update={"timeout_s": 20.0})
    monkeypatch.setattr(worker.refitting.sender, "section", short)
    port = free_port("127.0.0.1")
    process = trainer("dies", models.b, "cuda:1", port)
    await worker.init_collective_async(0, "127.0.0.1", port, world_size=2, train_world_size=1)
    assert await worker.update_weights_from_collective_async()

    with pytest.raises(RefitError, match="a refit failed half-way"):
        async with asyncio.timeout(60):
            await worker.update_weights_from_collective_async()

    assert process.wait(60) == 9
    with pytest.raises(NotReadyError, match="refit once more, completely"):
        await tokens(worker)
    await worker.refit_async(policy(models.a))
    assert await tokens(worker) == expected.a


async def test_the_weights_come_back_from_sleep_at_level_1(worker, models, expected):
    await worker.refit_async(policy(models.a))
    used = torch.cuda.mem_get_info(0)[0]
    await worker.sleep_async()
    asleep = torch.cuda.mem_get_info(0)[0]
    with pytest.raises(NotReadyError, match="wake_up_async"):
        await tokens(worker)
    await worker.wake_up_async()

    assert asleep - used > 10e9  # bytes; the KV cache is most of it
    assert await tokens(worker) == expected.a


async def test_a_refit_after_sleep_at_level_2_needs_no_buffers(worker, models, expected):
    await worker.refit_async(policy(models.a))
    await worker.sleep_async(level=2)
    await worker.wake_up_async(tags=["weights"])
    with pytest.raises(NotReadyError):
        await tokens(worker)
    await worker.refit_async(policy(models.a), "parameters")
    with pytest.raises(NotReadyError, match="kv_cache"):
        await tokens(worker)
    await worker.wake_up_async(tags=["kv_cache"])

    assert await tokens(worker) == expected.a
    assert await worker.verify_refit_async(policy(models.a)) == {}
