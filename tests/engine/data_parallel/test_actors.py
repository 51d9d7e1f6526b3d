"""Qwen3-MoE over two actors, one data-parallel group, experts shared: right under any load, and through refits."""

from __future__ import annotations

import asyncio
import os
import signal

import httpx
import psutil
import pytest
import pytest_asyncio
from patience import HUNG_S

from quirks_core.base.errors import QuirksError
from worker.errors import BatchError, NotReadyError, RankError, RefitError
from worker.group.ranks import Rank
from worker.lab.kit.lab import PROMPTS, batch_of
from worker.refit import Manifest, send_ipc_zmq, tensors

LONGEST = 256
NEW_TOKENS = 64
#: Leaves room for two tokens: a short request.
SHORT = tuple((7 * i * i + 11) % 500 + 5 for i in range(LONGEST - 2))


@pytest.fixture(scope="module")
def policies(checkpoint, lab):
    """Two sets of weights, and what transformers makes of the prompts with each: 24 tokens."""
    found = {}
    for name, seed in (("a", 0), ("b", 1)):
        model = lab.trainer(checkpoint("qwen3_moe", seed=seed))
        found[name] = (model, [row.tokens for row in lab.reference(model)])
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def started(checkpoint, grouped):
    values = {
        "purpose": "rollout",
        "engine": {
            "data_parallel_size": 2,
            "enable_expert_parallel": True,
            "load_format": "auto",
            "max_model_len": LONGEST,
            "max_num_seqs": 128,
        },
        "parallel": {"expert_parallel_size": 2},
        "sampling": {"max_new_tokens": NEW_TOKENS},
        "refit": {"timeout_s": HUNG_S},
        "server": {"enabled": True},
    }
    async with grouped(checkpoint("qwen3_moe"), values) as group:
        yield group


@pytest.fixture
def group(started):
    """The group; a test must leave it idle."""
    yield started
    assert started._actors is None or started._actors.in_flight == [0, 0]


@pytest.fixture
def right(tokens, policies):
    """Both ranks generate what transformers does with a policy."""

    async def check(group, policy, ranks=(None, 0, 1)):
        for rank in ranks:
            got = await tokens(group, PROMPTS, rank=rank)
            assert [row[:24] for row in got] == policies[policy][1], f"rank {rank}"

    return check


@pytest.fixture
def under_way(group, tokens):
    """Waits until what was sent to both ranks has made some tokens: short requests that came later have."""

    async def wait():
        await asyncio.gather(*(tokens(group, [SHORT], rank=rank) for rank in (0, 1)))

    return wait


def test_every_process_says_itself_that_the_experts_are_shared(group):
    rows = group.topology.rows

    assert group.strategy == group.plan.value("parallel.dp_strategy") == "actors"
    assert [(row.dp_rank, row.dp_size, row.ep_rank, row.ep_size) for row in rows] == [(0, 2, 0, 2), (1, 2, 1, 2)]
    for layer in rows[0].experts:
        assert [row.experts[layer] for row in rows] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert len({row.expert_bytes for row in rows}) == 1


def test_every_process_of_every_actor_acknowledges_the_same_plan(group):
    assert {ack.digest for receipt in group.receipts for ack in receipt.processes} == {group.plan.digest}
    for receipt in group.receipts:
        assert len(receipt.processes) == 2  # the actor, and the engine core with its worker
        for ack in receipt.processes:
            assert {effect.slot.rpartition(".")[2] for effect in ack.effects} >= {"all_gatherv", "reduce_scatterv", "apply"}


async def test_replicas_sample_differently_unless_samples_have_seeds(group, tokens):
    both = [await tokens(group, PROMPTS, greedy=False, rank=rank) for rank in (0, 1)]
    seeded = [await tokens(group, PROMPTS, greedy=False, rank=rank, seeds=[1, 2, 3]) for rank in (0, 1)]

    assert both[0] != both[1]
    assert seeded[0] == seeded[1]


async def test_a_thousand_evenly_shared_requests_keep_their_places(group, tokens):
    prompts = [(*SHORT[:-1], 5 + index % 500) for index in range(1000)]
    expected = await tokens(group, prompts[:500], rank=0)

    running = asyncio.ensure_future(tokens(group, prompts))
    while not any(group._actors.in_flight):  # noqa: ASYNC110 - it offers no event
        await asyncio.sleep(0)  # one turn of the loop shares all of them out
    assert group._actors.in_flight == [500, 500]
    got = await running

    assert got == expected + expected


@pytest.mark.parametrize("waves", [[(0, 1), (1, 1)] * 3, [(0, 30), (1, 1), (1, 40), (0, 1)]], ids=["alternating", "bursts"])
async def test_no_uneven_load_hangs(group, tokens, policies, waves):
    expected = policies["a"][1]

    for rank, count in waves:
        got = await tokens(group, [PROMPTS[index % 3] for index in range(count)], rank=rank)
        assert [row[:24] for row in got] == [expected[index % 3] for index in range(count)]


async def test_a_pause_in_the_middle_freezes_all_ranks_without_a_loss(group, tokens, policies, under_way):
    running = asyncio.ensure_future(tokens(group, PROMPTS * 4))
    await under_way()

    await group.pause_async()
    late = asyncio.ensure_future(tokens(group, PROMPTS))
    await asyncio.sleep(0.5)
    assert not running.done()
    assert not late.done()
    await group.resume_async()

    assert [row[:24] for row in await running] == policies["a"][1] * 4
    assert [row[:24] for row in await late] == policies["a"][1]


async def test_pauses_among_refits_reach_all_ranks_in_the_same_order(group, tokens, policies, right):
    async def pause_and_resume(mode):
        for _ in range(4):
            await group.pause_async(mode)
            await group.resume_async()

    running = asyncio.ensure_future(tokens(group, PROMPTS * 4))
    pausing = [asyncio.ensure_future(pause_and_resume(mode)) for mode in ("keep", "wait")]
    for name in "baba":
        await group.refit_async(policies[name][0])
    await asyncio.gather(*pausing)
    await running
    await right(group, "a")


@pytest.mark.parametrize("transport", ["ipc_zmq", "collective"])
async def test_a_refit_in_the_middle_reaches_all_ranks(
    group, policies, right, under_way, monkeypatch, refit_section, transport
):
    refit_section(group.refits.sender, transport=transport)
    running = [
        asyncio.ensure_future(anext(group.generate_async(batch_of(PROMPTS[:1]), greedy=True, data_parallel_rank=rank)))
        for rank in (0, 1)
    ]
    await under_way()
    call = Rank.call

    async def one_is_told_later(rank, *arguments, **named):
        """An engine that joins a collective takes no step, and in lock-step the other would wait for it in one."""
        if "init_collective_async" in arguments and rank is group._actors.ranks[1]:
            await asyncio.sleep(0.1)
        return await call(rank, *arguments, **named)

    monkeypatch.setattr(Rank, "call", one_is_told_later)
    refit = asyncio.ensure_future(group.refit_async(policies["b"][0], version=f"b by {transport}"))
    await asyncio.sleep(0.05)
    meanwhile = asyncio.ensure_future(anext(group.generate_async(batch_of(PROMPTS[:1]), greedy=True)))
    await refit

    assert (await meanwhile)[0] == 0, "who asks meanwhile is not refused"
    for item in running:
        _, output = await item
        (spans,) = output["weight_versions"]
        assert len(spans) == 2, "the refit came in the middle"
        assert spans[-1][0] == f"b by {transport}"
    await right(group, "b")
    assert await group.verify_refit_async(policies["b"][0]) == {}
    assert len(await group.verify_refit_async(policies["a"][0])) > 0

    await group.refit_async(policies["a"][0], version="a")
    await right(group, "a", ranks=(None,))
    assert {state["version"] for state in await group.health()} == {"a"}


async def test_a_refit_that_fails_on_one_rank_closes_the_group(group, policies, right):
    """Until a complete one."""
    addresses = await group.report_refit_addresses_async()
    state = dict(tensors(policies["b"][0], "parameters"))

    def breaks():
        for index, item in enumerate(state.items()):
            if index == 6:
                raise RuntimeError("the optimizer has gone")
            yield item

    whole = {"manifest": Manifest.of(state.items()), "buffer_bytes": 1, "timeout_s": HUNG_S}
    sending = [
        asyncio.ensure_future(asyncio.to_thread(send_ipc_zmq, source, [address], **whole))
        for source, address in zip((state.items, breaks), addresses, strict=True)
    ]
    with pytest.raises(RefitError, match="rank 1: a refit failed half-way"):
        await group.update_weights_via_ipc_zmq_async()
    assert [type(item) for item in await asyncio.gather(*sending, return_exceptions=True)] == [type(None), RuntimeError]
    with pytest.raises(NotReadyError, match="failed on rank 1; refit once more"):
        await anext(group.generate_async(batch_of(PROMPTS)))

    await group.refit_async(policies["a"][0], version="a")
    await right(group, "a")


async def test_who_leaves_early_takes_the_requests_out_of_all_engines(group, tokens):
    samples = group.generate_async(batch_of(PROMPTS * 10), greedy=True)
    await anext(samples)

    await samples.aclose()

    assert await group.reset_prefix_cache_async()  # false while an engine still works on a request
    await tokens(group, PROMPTS)


async def test_texts_are_generated_by_all_ranks_in_their_places(group):
    prompts = [f"t{number} t{number + 1}" for number in range(3, 9)]

    by_all, by_one = [
        dict([item async for item in group.generate_text_async({"prompts": prompts}, greedy=True, data_parallel_rank=rank)])
        for rank in (None, 1)
    ]

    assert sorted(by_all) == list(range(6))
    assert by_all == by_one


async def test_what_cannot_be_generated_is_refused_before_it_is_sent(group):
    with pytest.raises(BatchError, match=r"rows \[1\] are empty"):
        await anext(group.generate_text_async({"prompts": ["t3", ""]}))
    with pytest.raises(BatchError, match=r"rows \[1\] are empty, or longer than engine\.max_model_len = 256"):
        await anext(group.generate_async(batch_of([PROMPTS[0], (*SHORT, 1, 2, 3)])))
    with pytest.raises(QuirksError, match="rank 2 does not exist: there are 2"):
        await anext(group.generate_async(batch_of(PROMPTS), data_parallel_rank=2))


async def test_one_key_opens_the_server_of_every_rank(group):
    urls = await group.report_dp_openai_server_base_urls()

    assert len(set(urls)) == 2
    async with httpx.AsyncClient(timeout=HUNG_S) as http:
        for url in urls:
            refused = await http.get(f"{url}/models")
            reply = await http.get(f"{url}/models", headers={"Authorization": f"Bearer {group.openai_api_key}"})
            assert (refused.status_code, reply.status_code) == (401, 200)


# From here on ranks die; the group is whole again after each.


async def test_a_killed_engine_s_rank_is_named_until_a_restart(group, of_group, right):
    running = asyncio.ensure_future(anext(group.generate_async(batch_of(PROMPTS * 20), data_parallel_rank=0)))
    await asyncio.sleep(0.05)
    before = of_group(group)
    core = next(one.pid for one in group.receipts[1].processes if one.process.startswith("EngineCore"))

    os.kill(core, signal.SIGKILL)
    with pytest.raises(RankError, match=r"rank 1: the engine died: .*was killed by SIGKILL; call restart(?!_async)"):
        await asyncio.gather(running, anext(group.generate_async(batch_of(PROMPTS), data_parallel_rank=1)))
    with pytest.raises(RankError, match="rank 1: the engine died"):
        await anext(group.generate_async(batch_of(PROMPTS)))
    pids = [process.pid for process in before.actors]
    await asyncio.gather(group.restart(), group.restart())  # both have seen it; one of them does it

    await right(group, "a")
    assert not {*pids} & {state["pid"] for state in await group.health()}
    _, left = psutil.wait_procs([process for engine in before.engines for process in engine], timeout=HUNG_S)
    assert left == []


async def test_a_killed_actor_s_rank_is_named_and_leaves_no_process(group, of_group):
    before = of_group(group)

    async def all_samples():
        return [item async for item in group.generate_async(batch_of(PROMPTS * 200), data_parallel_rank=1)]

    running = asyncio.ensure_future(all_samples())
    await asyncio.sleep(0.05)

    before.actors[0].send_signal(signal.SIGKILL)
    with pytest.raises(RankError, match=r"rank 0: its actor \(process \d+ on .*\) died; call restart"):
        await running
    await group.shutdown()

    _, left = psutil.wait_procs([*before.actors, *before.engines[0], *before.engines[1]], timeout=HUNG_S)
    assert left == []
    with pytest.raises(QuirksError, match="the group is not running"):
        await group.pause_async()
