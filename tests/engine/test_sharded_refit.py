"""Refits from two ranks of an FSDP2 trainer into two tensor-parallel ranks: each receives what it holds, once."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import asynccontextmanager, suppress

import pytest
import pytest_asyncio
from patience import HUNG_S

from worker.errors import RefitError, RefitRejectedError
from worker.refit.transport.channel import free_port

#: A rank of a trainer that is sharded over all of them: takes over each checkpoint that it reads of, and sends it.
_TRAINER = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.tensor import distribute_tensor
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM
from worker.refit import CollectiveSender, Source, send_ipc_zmq

model, address = sys.argv[1:3]
rank, ranks, port, own, world_size = map(int, sys.argv[3:])
policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
if ranks > 1:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{own}", rank=rank, world_size=ranks)
    mesh = dist.init_device_mesh("cpu", (ranks,))
    for layer in policy.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(policy, mesh=mesh)
if address:
    for parameter in policy.parameters():
        parameter.to_local().share_memory_()
else:
    sender = CollectiveSender("127.0.0.1", port, world_size=world_size, rank=rank, timeout_s=600)
for line in sys.stdin:
    weights = AutoModelForCausalLM.from_pretrained(line.strip(), dtype=torch.float32).state_dict()
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if ranks > 1:
                whole = distribute_tensor(weights[name], mesh, parameter.placements)
                parameter.to_local().copy_(whole.to_local())
            elif parameter.shape == weights[name].shape:
                parameter.copy_(weights[name])
    try:
        source = Source(policy, "state_dict")
        send_ipc_zmq(source, [address]) if address else sender.send(source)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    else:
        print("sent", flush=True)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["llama_tied", "qwen3_moe"])
async def worker(request, plain_layers, checkpoint, running):
    """An engine of two tensor-parallel ranks, one thread each: without that, vLLM's CPU build wants a NUMA node per rank."""
    values = {
        "engine": {"tensor_parallel_size": 2, "enable_expert_parallel": request.param == "qwen3_moe"},
        "env": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
        "refit": {"timeout_s": HUNG_S},
        "recipe": "plain",
    }
    with plain_layers():
        async with running(checkpoint(request.param), values) as started:
            started.kind = request.param
            yield started


#: For what does not depend on the layers.
one_kind = pytest.mark.parametrize("worker", ["llama_tied"], indirect=True)


@asynccontextmanager
async def trainer(worker, model, ranks, others=(), addresses=None):
    """Starts the ranks of a trainer, which join the engine if they have no addresses; each of the others has its own model."""
    port, own, size = free_port("127.0.0.1"), free_port("127.0.0.1"), ranks + len(others) + 2
    pipe = asyncio.subprocess.PIPE
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", _TRAINER, path, address, *map(str, (rank, ranks, port, own, size)), stdin=pipe, stdout=pipe
        )
        for rank, (path, address) in enumerate(zip([model] * ranks + list(others), addresses or [""] * 8, strict=False))
    ]
    try:
        if addresses is None:
            await worker.init_collective_async(0, "127.0.0.1", port, size, len(started))
        yield started
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def answer(process):
    """What a rank says next."""
    return (await process.stdout.readline()).decode().strip()


async def sent(worker, started, path, *, by_ipc=False):
    """Has a trainer take a checkpoint over and send it; returns what its ranks say."""
    for process in started:
        with suppress(ConnectionError):
            process.stdin.write(f"{path}\n".encode())
    await (worker.update_weights_via_ipc_zmq_async if by_ipc else worker.update_weights_from_collective_async)()
    return [await answer(process) for process in started]


@pytest.mark.parametrize(("ranks", "by_ipc"), [(1, False), (2, False), (2, True)])
async def test_each_engine_rank_receives_what_it_holds(worker, checkpoint, lab, ranks, by_ipc):
    """From the third refit on each rank of the trainer sends its shards, or lets each rank of the engine read those of all.

    The engine has what its own loader makes of them.
    """
    ways, addresses = [], await worker.report_refit_addresses_async() if by_ipc else None
    async with asyncio.timeout(HUNG_S), trainer(worker, checkpoint(worker.kind), ranks, addresses=addresses) as started:
        for number in range(5):
            path = checkpoint(worker.kind, seed=number % 2)
            assert await sent(worker, started, path, by_ipc=by_ipc) == ["sent"] * ranks
            ways.append(worker.last_refit.by_pieces)
            if number != 3 or not by_ipc:  # which makes the engine open another trainer's memory
                assert await worker.verify_refit_async(lab.trainer(path)) == {}

    assert ways[2:] == [True] * 3
    assert worker.last_refit.reloaded == 0  # experts, too, which this platform packs
    assert lab.same_tokens(await lab.greedy(worker), lab.reference(path)).passed


@one_kind
async def test_a_slow_rank_is_waited_for_and_a_dead_one_missed(worker, checkpoint, lab):
    """The engine keeps its weights when a rank of the trainer dies, and takes others' when a new trainer joins."""
    first, second = (checkpoint(worker.kind, seed=seed) for seed in range(2))
    async with asyncio.timeout(HUNG_S), trainer(worker, first, 2) as started:
        for _ in range(3):
            await sent(worker, started, first)
        assert worker.last_refit.by_pieces
        started[1].send_signal(signal.SIGSTOP)
        sending = asyncio.ensure_future(sent(worker, started, second))
        await asyncio.sleep(1)
        assert not sending.done()
        started[1].send_signal(signal.SIGCONT)
        assert await sending == ["sent"] * 2
        assert await worker.verify_refit_async(lab.trainer(second)) == {}

        started[1].kill()
        with pytest.raises(RefitError, match=r"a rank died or took too long.*the engine keeps the weights it had"):
            await sent(worker, started, first)

    assert await worker.verify_refit_async(lab.trainer(second)) == {}
    async with asyncio.timeout(HUNG_S), trainer(worker, first, 2) as started:
        await sent(worker, started, first)
        assert await worker.verify_refit_async(lab.trainer(first)) == {}


@one_kind
async def test_ranks_of_other_shapes_are_refused(worker, checkpoint, tmp_path_factory, lab):
    """A trainer whose ranks have different models sends nothing, and goes on once they have the same."""
    path = checkpoint(worker.kind)
    other = tmp_path_factory.mktemp("other") / "model"
    model = lab.trainer(path)
    model.resize_token_embeddings(model.config.vocab_size + 64)
    model.save_pretrained(other)
    async with asyncio.timeout(HUNG_S), trainer(worker, path, 1, [other]) as started:
        before = worker.last_refit
        with pytest.raises(RefitRejectedError, match="rejected by another rank; nothing was loaded"):
            await sent(worker, started, path)
        said = [await answer(process) for process in started]

    assert said[1].startswith("RefitRejectedError: refit rejected: the model of the trainer's rank 1 is not rank 0's: ")
    assert "model.embed_tokens.weight" in said[1]
    assert worker.last_refit is before
