"""One data-parallel group of engines on Ray, an engine and a GPU for each rank, and the experts shared between them.

Tokens are those of a tiny Qwen3-MoE, bytes and refits those of layers of the shape of Qwen3-30B-A3B. CI has no GPU;
docs/results/gpu.md has the last results. A class' group is gone before the next one starts: Ray gives each GPU away once.
"""

# ruff: noqa: D102  # a test's name says it

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import torch

from worker import VllmAsyncGenerationWorker
from worker.lab.kit import checkpoints
from worker.lab.kit.lab import PROMPTS, batch_of
from worker.lab.parity.session import running
from worker.refit import RefitScope
from worker.refit.transport.channel import free_port

pytest.importorskip("ray")
from worker import WorkerGroup
from worker.errors import RankError

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")]
three_gpus = pytest.mark.skipif(GPUS < 3, reason="needs a GPU beside the two of the group: NCCL has one rank on each")
four_gpus = pytest.mark.skipif(GPUS < 4, reason="needs four GPUs")

DEVICE = "cuda:0"
#: Float32, because engines that put batches together in other ways part at the first tie of bfloat16.
ENGINE = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 64,  # so that the first of many are through long before the last
    "gpu_memory_utilization": 0.2,
    "kv_cache_memory_bytes": 2 << 30,  # not measured, so that other programs may use the GPUs meanwhile
    "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
}
ENV: dict[str, str] = {}
#: Two layers of Qwen3-30B-A3B.
LAYERS = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "vocab_size": 151936,
    "max_position_embeddings": 4096,
}
NEW_TOKENS = 24
#: Seconds after which a batch counts as hanging.
LIMIT_S = 120
#: Nats between logprobs of the same token from the same prefix; 0.002 were seen between the kernels of GPU and CPU.
TOLERANCE = 0.02

_TRAINER = """
    import sys, torch
    from transformers import AutoModelForCausalLM
    from worker.refit import CollectiveSender, send_ipc_zmq, tensors
    how, model, device, *where = sys.argv[1:]
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(device)
    source = lambda: tensors(policy, "state_dict")
    if how == "ipc_zmq":
        send_ipc_zmq(source, where, device="cpu", buffer_bytes=1 << 16)
    else:
        port, world_size = map(int, where)
        sender = CollectiveSender("127.0.0.1", port, world_size=world_size, device=device)
        for _ in range(2):
            sender.send(source, buffer_bytes=1 << 16)
        sender.close()
"""


def trainer(how, model, device, *where):
    """A trainer in a process of its own."""
    code = textwrap.dedent(_TRAINER)
    return subprocess.Popen([sys.executable, "-c", code, how, str(model), device, *map(str, where)])


def policy(model):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(DEVICE)


def spare_gpu():
    """The GPU that the group left alone."""
    free = [torch.cuda.mem_get_info(index)[0] for index in range(GPUS)]
    return f"cuda:{free.index(max(free))}"


@asynccontextmanager
async def group(model, ranks, *, tensor=1, strategy="actors", **values) -> AsyncIterator[WorkerGroup]:
    engine = {**ENGINE, "data_parallel_size": ranks, "tensor_parallel_size": tensor, "enable_expert_parallel": True, **values}
    config = {
        "model": str(model),
        "engine": engine,
        "parallel": {"dp_strategy": strategy, "expert_parallel_size": ranks * tensor},
        "cluster": {"start_timeout_s": 300},
        "sampling": {"max_new_tokens": NEW_TOKENS, "ignore_eos": True},
        "env": ENV,
    }
    async with WorkerGroup(config) as started:
        yield started


async def samples(engines, prompts, first=None, **options):
    """Token ids and logprobs of what was generated, by row; a batch that hangs is an error.

    Args:
        engines: A worker or a group.
        prompts: Token ids.
        first: An event, set when the first sample is there.
        **options: Of `generate_async`.
    """
    found = {}
    async with asyncio.timeout(LIMIT_S):
        async for index, output in engines.generate_async(batch_of(prompts), greedy=True, **options):
            new = slice(len(prompts[index]), None)
            found[index] = (output["output_ids"][0, new].tolist(), output["logprobs"][0, new].tolist())
            if first is not None:
                first.set()
    return [found[index] for index in range(len(prompts))]


async def under_way(engines, prompts, **options):
    """Starts to generate; returns when the first samples are there and most are not."""
    first = asyncio.Event()
    generating = asyncio.ensure_future(samples(engines, prompts, first, **options))
    await asyncio.wait((generating, asyncio.ensure_future(first.wait())), return_when=asyncio.FIRST_COMPLETED)
    assert not generating.done()
    return generating


def tokens(found):
    return [ids for ids, _ in found]


def agree(found, wanted):
    """Returns whether two runs differ by rounding alone: where tokens part, two logits were nearly equal, and not all do."""
    same = total = 0
    for (ids, logprobs), (wanted_ids, wanted_logprobs) in zip(found, wanted, strict=True):
        total += len(wanted_ids)
        for token, logprob, wanted_token, wanted_logprob in zip(ids, logprobs, wanted_ids, wanted_logprobs, strict=True):
            if abs(logprob - wanted_logprob) > TOLERANCE:
                return False
            if token != wanted_token:
                break
            same += 1
    return same > total / 2


def expert_bytes(config):
    """Bytes of all experts of a checkpoint's configuration: gate, up and down projections."""
    size = 3 * config.hidden_size * config.moe_intermediate_size * config.dtype.itemsize
    return config.num_hidden_layers * config.num_experts * size


def check_shares(rows, ranks, model):
    """Every rank holds other experts of each layer, each the same number, and together they hold all."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    assert sorted((row.ep_rank, row.ep_size) for row in rows) == [(rank, ranks) for rank in range(ranks)]
    assert {row.expert_bytes for row in rows} == {expert_bytes(config) // ranks}
    for layer in rows[0].experts:
        held = [row.experts[layer] for row in rows]
        assert {len(ids) for ids in held} == {config.num_experts // ranks}
        assert sorted(expert for ids in held for expert in ids) == list(range(config.num_experts))
    assert {len(row.experts) for row in rows} == {config.num_hidden_layers}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return SimpleNamespace(
        a=checkpoints.build("qwen3_moe", folder / "a", seed=0), b=checkpoints.build("qwen3_moe", folder / "b", seed=1)
    )


@pytest.fixture(scope="module")
async def expected(models):
    """What one engine alone makes of each model."""
    sampling = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    config = {"model": str(models.a), "engine": {**ENGINE, "load_format": "auto"}, "sampling": sampling, "env": ENV}
    async with running(VllmAsyncGenerationWorker(config)) as worker:
        first = await samples(worker, PROMPTS)
        await worker.refit_async(policy(models.b))
        second = await samples(worker, PROMPTS)
    assert tokens(first) != tokens(second)
    return SimpleNamespace(a=first, b=second)


class TestTwoEnginesInOneGroup:
    """Data parallel 2, expert parallel 2, tiny."""

    @pytest.fixture(scope="class")
    async def running(self, models, expected):  # noqa: ARG002  # one after the other
        async with group(models.a, 2, load_format="auto") as engines:
            yield engines

    async def test_each_rank_holds_half_of_the_experts(self, running, models):
        check_shares(running.topology.rows, 2, models.a)

    @pytest.mark.parametrize("rank", [None, 0, 1])
    async def test_the_tokens_are_those_of_one_engine(self, running, expected, rank):
        assert tokens(await samples(running, PROMPTS, data_parallel_rank=rank)) == tokens(expected.a)

    async def test_ranks_with_unequal_load_answer_every_prompt(self, running, expected):
        busy, quiet = await asyncio.gather(
            samples(running, PROMPTS * 80, data_parallel_rank=0), samples(running, PROMPTS, data_parallel_rank=1)
        )

        assert agree(busy, expected.a * 80)
        assert agree(quiet, expected.a)

    async def test_a_trainer_s_process_refits_every_rank_by_ipc_zmq(self, running, models, expected):
        addresses = await running.report_refit_addresses_async()
        process = trainer("ipc_zmq", models.b, DEVICE, *addresses)
        await running.update_weights_via_ipc_zmq_async(version="b")

        assert len(addresses) == 2
        assert process.wait(60) == 0
        for rank in (0, 1):
            assert tokens(await samples(running, PROMPTS, data_parallel_rank=rank)) == tokens(expected.b)

    @three_gpus
    async def test_a_trainer_s_process_refits_every_rank_by_nccl(self, running, models, expected):
        port = free_port("127.0.0.1")
        process = trainer("collective", models.b, spare_gpu(), port, 3)
        await running.init_collective_async("127.0.0.1", port, world_size=3, train_world_size=1)
        for version in ("b", "b again"):
            await running.update_weights_from_collective_async(version=version)

        assert process.wait(60) == 0
        for rank in (0, 1):
            assert tokens(await samples(running, PROMPTS, data_parallel_rank=rank)) == tokens(expected.b)

    async def test_a_group_whose_rank_is_killed_names_it_until_a_restart(self, running, expected):
        generating = await under_way(running, PROMPTS * 1000)
        os.kill(next(one["pid"] for one in await running.health() if one["rank"] == 1), signal.SIGKILL)

        with pytest.raises(RankError, match="rank 1"):
            await generating
        await running.restart()

        assert tokens(await samples(running, PROMPTS)) == tokens(expected.a)


async def test_each_rank_of_one_engine_makes_the_tokens_of_its_policy(models, expected):
    async with group(models.a, 2, strategy="engine", load_format="auto") as running:
        check_shares(running.topology.rows, 2, models.a)
        before = [await samples(running, PROMPTS, data_parallel_rank=rank) for rank in (None, 0, 1)]
        await running.refit_async(policy(models.b))
        after = [await samples(running, PROMPTS, data_parallel_rank=rank) for rank in (None, 0, 1)]

    assert [tokens(found) for found in before] == [tokens(expected.a)] * 3
    assert [tokens(found) for found in after] == [tokens(expected.b)] * 3


@four_gpus
@pytest.mark.parametrize(("ranks", "tensor"), [(4, 1), (2, 2)])
async def test_four_gpus_with_shared_experts_make_one_engines_tokens(models, expected, ranks, tensor):
    async with group(models.a, ranks, tensor=tensor, load_format="auto") as running:
        check_shares(running.topology.rows, 4, models.a)
        before = [await samples(running, PROMPTS * 20, data_parallel_rank=rank) for rank in range(ranks)]
        await running.refit_async(policy(models.b))
        after = [await samples(running, PROMPTS, data_parallel_rank=rank) for rank in range(ranks)]

    assert all(agree(found, expected.a * 20) for found in before)
    assert all(agree(found, expected.b) for found in after)


async def test_ranks_share_a_real_layer_shape_with_the_right_weights(tmp_path):
    """Data parallel 2, expert parallel 2, two layers of the shape of Qwen3-30B-A3B; weights are dummy until a refit."""
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    config = Qwen3MoeConfig(**LAYERS, architectures=["Qwen3MoeForCausalLM"], dtype="bfloat16")
    config.save_pretrained(tmp_path)
    torch.manual_seed(0)
    with torch.device(DEVICE):
        weights = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    dummy = {"load_format": "dummy", "dtype": "bfloat16", "vllm_kwargs": {"skip_tokenizer_init": True}}

    async with group(tmp_path, 2, **dummy) as running:
        await running.refit_async(weights, RefitScope.PARAMETERS)

        check_shares(running.topology.rows, 2, tmp_path)
        assert await running.verify_refit_async(weights) == {}
