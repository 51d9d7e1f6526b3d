"""Refits from two ranks of an FSDP2 trainer into two tensor-parallel ranks: each receives what it holds, once.

vLLM's CPU platform packs every linear layer; a third party's patch turns that off here, so that they can be copied, as on a GPU.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from patience import HUNG_S

from quirks_core.source.vllm_source import INSTALLED
from worker.refit.transport.channel import free_port

_TARGET = "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm"
_MODULE = """
from quirks_core import Fact, ModelFlag, Patch, Quirk, Severity, report

QUIRK = Quirk(
    id="acme-unpacked/linear",
    title="linear layers keep their weights as they are",
    flag=ModelFlag.ENVIRONMENT,
    match=Fact("recipe").one_of("unpacked"),
    adjustments=Patch(TARGET, wrapper="acme_unpacked:plain", expects=(EXPECTS,)),
    severity=Severity.NOISE,
    references=report("https://example.org/1"),
)


def plain(original):
    import torch

    def dispatch(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    return dispatch
"""

#: A rank of a trainer that is sharded over all of them: takes over each checkpoint that it reads of, and sends it.
_TRAINER = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.tensor import distribute_tensor
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM
from worker.refit import CollectiveSender, Source

model, rank, ranks, port, own, world_size = sys.argv[1], *map(int, sys.argv[2:])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{own}", rank=rank, world_size=ranks)
policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
if ranks > 1:
    mesh = dist.init_device_mesh("cpu", (ranks,))
    for layer in policy.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(policy, mesh=mesh)
sender = CollectiveSender("127.0.0.1", port, world_size=world_size, rank=rank, timeout_s=600)
for line in sys.stdin:
    weights = AutoModelForCausalLM.from_pretrained(line.strip(), dtype=torch.float32).state_dict()
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if ranks > 1:
                whole = distribute_tensor(weights[name], mesh, parameter.placements)
                parameter.to_local().copy_(whole.to_local())
            else:
                parameter.copy_(weights[name])
    try:
        sender.send(Source(policy, "state_dict"))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    else:
        print("sent", flush=True)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["qwen3", "qwen3_moe"])
async def worker(request, third_party, checkpoint, running):
    """An engine of two tensor-parallel ranks, one thread each: without that, vLLM's CPU build wants a NUMA node per rank."""
    source = f"TARGET = {_TARGET!r}\nEXPECTS = {INSTALLED.fingerprint(_TARGET)!r}\n{_MODULE}"
    values = {
        "engine": {"tensor_parallel_size": 2},
        "env": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
        "refit": {"timeout_s": HUNG_S},
        "recipe": "unpacked",
    }
    with third_party("acme_unpacked", "acme-unpacked/linear = acme_unpacked:QUIRK", source):
        async with running(checkpoint(request.param), values) as started:
            started.kind = request.param
            yield started


@asynccontextmanager
async def trainer(worker, model, ranks):
    """Starts the ranks of a trainer, which join the engine; yields what has them send a checkpoint."""
    port, own, size = free_port("127.0.0.1"), free_port("127.0.0.1"), ranks + 2
    pipe = asyncio.subprocess.PIPE
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", _TRAINER, *map(str, (model, rank, ranks, port, own, size)), stdin=pipe, stdout=pipe
        )
        for rank in range(ranks)
    ]

    async def send(path, version):
        for process in started:
            process.stdin.write(f"{path}\n".encode())
        await worker.update_weights_from_collective_async(version)
        return [(await process.stdout.readline()).decode().strip() for process in started]

    try:
        await worker.init_collective_async(0, "127.0.0.1", port, size, ranks)
        yield send
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
            await process.communicate()


@pytest.mark.parametrize("ranks", [1, 2])
async def test_each_engine_rank_receives_what_it_holds(worker, checkpoint, shared_lab, ranks):
    """Each rank of the trainer sends its shards from the third refit on, and the engine has what its own loader makes of them."""
    policies = [checkpoint(worker.kind), checkpoint(worker.kind, seed=1)]
    ways = []
    async with asyncio.timeout(HUNG_S), trainer(worker, policies[0], ranks) as send:
        for number in range(5):
            path = policies[number % 2]
            assert await send(path, str(number)) == ["sent"] * ranks
            ways.append(worker.last_refit.by_pieces)
            assert await worker.verify_refit_async(shared_lab.trainer(path)) == {}

    assert all(ways[2:])
    assert shared_lab.same_tokens(await shared_lab.greedy(worker), shared_lab.reference(path)).passed
