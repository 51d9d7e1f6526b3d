"""New weights while samples are being made: they go on under the new ones, and say which tokens are whose."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from patience import HUNG_S

NEW_TOKENS = 900


@pytest.fixture
async def updated(worker, lab, policies, sampling, generated):
    """Updates from policy ``a`` to ``b`` while samples are being made, and returns them."""

    async def run(*, clear_cache):
        sampling(max_new_tokens=NEW_TOKENS)

        async def consume():
            return dict([item async for item in worker.generate_async(lab.batch_of(lab.PROMPTS), greedy=True)])

        async with asyncio.timeout(HUNG_S):
            consuming = asyncio.create_task(consume())
            await generated(requests=3)
            await worker.refit_async(policies.b.model, version="b", clear_cache=clear_cache)
            return await consuming

    return run


def switch(output):
    """Where the new weights took over; the spans must cover all tokens."""
    ((first, start, middle), (second, again, end)) = output["weight_versions"][0]
    assert (first, start, second, end) == ("a", 0, "b", NEW_TOKENS)
    assert middle == again
    assert int(output["generation_lengths"]) == NEW_TOKENS
    return middle


async def test_without_the_cache_the_rest_is_the_new_weights(updated, lab, policies, logprobs_of):
    """With the cache dropped the rest is what the new weights make of everything before."""
    outputs = await updated(clear_cache=True)

    for index, prompt in enumerate(lab.PROMPTS):
        ids, begin = outputs[index]["output_ids"], len(prompt)
        middle = switch(outputs[index])
        got = outputs[index]["logprobs"][0, begin:].double()
        old, new = (logprobs_of(policy, ids, begin) for policy in (policies.a, policies.b))
        assert 10 <= middle < NEW_TOKENS
        assert (got[:middle] - old[:middle]).abs().max() < 1e-2
        assert (got[middle:] - new[middle:]).abs().max() < 1e-2
        assert (got[:middle] - new[:middle]).abs().max() > 0.1
        assert (got[middle:] - old[middle:]).abs().max() > 0.1


async def test_with_the_cache_samples_go_on_under_both_versions(updated, lab, policies, logprobs_of):
    outputs = await updated(clear_cache=False)

    for index, prompt in enumerate(lab.PROMPTS):
        ids, begin = outputs[index]["output_ids"], len(prompt)
        middle = switch(outputs[index])
        got = outputs[index]["logprobs"][0, begin:].double()
        assert (got[:middle] - logprobs_of(policies.a, ids, begin)[:middle]).abs().max() < 1e-2
        # The old weights' cache is still looked at, so these are neither policy's.
        assert (got[middle:] - logprobs_of(policies.b, ids, begin)[middle:]).abs().max() > 0.1


async def test_a_request_during_an_update_gets_the_new_weights(worker, policies, lab, trainer_process, until):
    """A request that comes while the weights come is made by the new ones."""
    async with trainer_process("ipc_zmq", *await worker.report_refit_addresses_async()) as trainer, asyncio.timeout(HUNG_S):
        updating = asyncio.create_task(worker.update_weights_via_ipc_zmq_async(version="b"))
        await until(Path(worker.refitting.sockets, "rank-0.sock").exists)
        samples = worker.generate_async(lab.batch_of(lab.PROMPTS[:1]), greedy=True)
        first = asyncio.create_task(anext(samples))
        await asyncio.sleep(0)

        trainer.send(policies.b.file)
        await updating

        _, output = await first
        await samples.aclose()
    assert output["weight_versions"] == [[("b", 0, lab.NEW_TOKENS)]]
    assert tuple(output["output_ids"][0, len(lab.PROMPTS[0]) :].tolist()) == policies.b.tokens[0].tokens
