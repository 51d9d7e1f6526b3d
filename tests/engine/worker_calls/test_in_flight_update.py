"""New weights while samples are being made: they go on under the new ones, and say which tokens are whose."""

from __future__ import annotations

import asyncio
from pathlib import Path

from patience import HUNG_S, settled

NEW_TOKENS = 900


async def test_with_the_cache_samples_go_on_under_both_versions(worker, lab, policies, sampling, generated, logprobs_of):
    """`test_pause` has those whose cache is dropped."""
    sampling(max_new_tokens=NEW_TOKENS)

    async def consume():
        return dict([item async for item in worker.generate_async(lab.batch_of(lab.PROMPTS), greedy=True)])

    async with asyncio.timeout(HUNG_S):
        consuming = asyncio.create_task(consume())
        await generated(requests=3)
        await worker.refit_async(policies.b.model, version="b", clear_cache=False)
        outputs = await consuming

    for index, prompt in enumerate(lab.PROMPTS):
        ids, begin = outputs[index]["output_ids"], len(prompt)
        ((first, start, middle), (second, again, end)) = outputs[index]["weight_versions"][0]
        assert (first, start, second, end, middle) == ("a", 0, "b", NEW_TOKENS, again)
        assert int(outputs[index]["generation_lengths"]) == NEW_TOKENS
        assert 10 <= middle < NEW_TOKENS
        got = outputs[index]["logprobs"][0, begin:].double()
        assert (got[:middle] - logprobs_of(policies.a, ids, begin)[:middle]).abs().max() < 1e-2
        # The old weights' cache is still looked at, so these are neither policy's.
        assert (got[middle:] - logprobs_of(policies.b, ids, begin)[middle:]).abs().max() > 0.1


async def test_a_request_during_an_update_gets_the_new_weights(worker, policies, lab, trainer_process):
    async with trainer_process("ipc_zmq", *await worker.report_refit_addresses_async()) as trainer, asyncio.timeout(HUNG_S):
        updating = asyncio.create_task(worker.update_weights_via_ipc_zmq_async(version="b"))
        await settled(Path(worker.refitting.sockets, "rank-0.sock").exists)
        samples = worker.generate_async(lab.batch_of(lab.PROMPTS[:1]), greedy=True)
        first = asyncio.create_task(anext(samples))
        await asyncio.sleep(0)

        trainer.send(policies.b.file)
        await updating

        _, output = await first
        await samples.aclose()
    assert output["weight_versions"] == [[("b", 0, lab.NEW_TOKENS)]]
    assert tuple(output["output_ids"][0, len(lab.PROMPTS[0]) :].tolist()) == policies.b.tokens[0].tokens
