"""New weights, pauses and resumes while samples are made: one after the other, and each token says whose it is."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from patience import settled

from worker.engine import vllm_adapter

#: Long enough for refits and pauses to meet while samples are made.
NEW_TOKENS = 900
ROUNDS = 2
REFITS = 4


@pytest.fixture
def samples(worker, lab, sampling):
    """Makes long samples."""
    sampling(max_new_tokens=NEW_TOKENS)

    async def run():
        return dict([item async for item in worker.generate_async(lab.batch_of(lab.PROMPTS), greedy=True)])

    return run


@pytest.fixture
def refit_under_way(worker, policies, trainer_process):
    """A refit to policy ``b``, for which the engine is paused and whose weights come at the end of the block."""

    @asynccontextmanager
    async def start():
        async with trainer_process("ipc_zmq", *await worker.report_refit_addresses_async()) as trainer:
            updating = asyncio.create_task(worker.update_weights_via_ipc_zmq_async(version="b"))
            await settled(Path(worker.refitting.sockets, "rank-0.sock").exists)
            yield
            trainer.send(policies.b.file)
            await updating

    return start


def paused(worker):
    """Asks the engine itself."""
    return worker.engine.llm.is_paused()


async def test_with_the_cache_samples_go_on_under_both_versions(worker, lab, policies, samples, generated, logprobs_of):
    """Those whose cache is dropped are below."""
    making = asyncio.create_task(samples())
    await generated(requests=3)
    await worker.refit_async(policies.b.model, version="b", clear_cache=False)
    outputs = await making

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


async def test_a_request_during_an_update_gets_the_new_weights(worker, policies, lab, refit_under_way):
    samples = worker.generate_async(lab.batch_of(lab.PROMPTS[:1]), greedy=True)
    async with refit_under_way():
        first = asyncio.create_task(anext(samples))
        await asyncio.sleep(0)

    _, output = await first
    await samples.aclose()
    assert output["weight_versions"] == [[("b", 0, lab.NEW_TOKENS)]]
    assert tuple(output["output_ids"][0, len(lab.PROMPTS[0]) :].tolist()) == policies.b.tokens[0].tokens


@pytest.mark.parametrize("mode", ["keep", "wait"])
async def test_every_token_is_made_by_the_weights_of_its_label(
    worker, policies, lab, samples, generated, logprobs_of, monkeypatch, mode
):
    """Despite pauses among refits."""
    label = vllm_adapter.label_weights

    async def slowly(llm, version):
        await asyncio.sleep(0.05)  # room for a resume between new weights and their label
        await label(llm, version)

    monkeypatch.setattr(vllm_adapter, "label_weights", slowly)

    async def pause_and_resume():
        for _ in range(REFITS * 2):
            await worker.pause_async(mode)
            await worker.resume_async()

    for _ in range(ROUNDS):
        await worker.refit_async(policies.a.model, version="a")
        making = asyncio.create_task(samples())
        await generated(requests=3)
        pausing = asyncio.create_task(pause_and_resume())
        for number in range(REFITS):
            name = "ba"[number % 2]
            await worker.refit_async(getattr(policies, name).model, version=f"{name}{number}", clear_cache=True)
        await pausing
        for index, output in (await making).items():
            ids, begin = output["output_ids"], len(lab.PROMPTS[index])
            got = output["logprobs"][0, begin:].double()
            thought = {name: logprobs_of(getattr(policies, name), ids, begin) for name in "ab"}
            assert (thought["a"] - thought["b"]).abs().max() > 0.1
            for version, start, end in output["weight_versions"][0]:
                assert (got[start:end] - thought[version[0]][start:end]).abs().max() < 1e-2, (index, version, start, end)


async def test_a_pause_during_a_refit_holds_after_it(worker, refit_under_way):
    async with refit_under_way():
        pausing = asyncio.create_task(worker.pause_async())
        await asyncio.sleep(0.1)
    await pausing

    assert await paused(worker)
    await worker.resume_async()


async def test_a_resume_during_a_refit_takes_effect_after_it(worker, refit_under_way, samples, unfinished):
    await worker.pause_async()
    making = asyncio.create_task(samples())
    await settled(lambda: unfinished() == 3)
    async with refit_under_way():
        resuming = asyncio.create_task(worker.resume_async())
        await asyncio.sleep(0.1)
        assert not resuming.done()
    await resuming

    assert not await paused(worker)
    assert {span for output in (await making).values() for span in output["weight_versions"][0]} == {("b", 0, NEW_TOKENS)}


async def test_a_refit_waits_for_the_requests_that_a_pause_lets_finish(worker, policies, samples, generated):
    making = asyncio.create_task(samples())
    await generated(requests=3)
    pausing = asyncio.create_task(worker.pause_async("wait"))
    while not await paused(worker):
        pass
    await worker.refit_async(policies.b.model, version="b")
    await pausing

    assert await paused(worker)
    await worker.resume_async()
    assert {span for output in (await making).values() for span in output["weight_versions"][0]} == {("a", 0, NEW_TOKENS)}


async def test_a_pause_whose_caller_is_cancelled_is_carried_out(worker):
    pausing = asyncio.create_task(worker.pause_async())
    await asyncio.sleep(0)
    pausing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pausing

    assert await paused(worker)
    await worker.resume_async()


async def test_waking_an_engine_that_is_awake_leaves_it_paused(worker):
    """A trainer may prepare for generation at any time; vLLM alone would resume the engine."""
    await worker.pause_async()

    await worker.wake_up_async()

    assert await paused(worker)
    await worker.resume_async()


async def test_images_are_forgotten_before_sleep(worker, monkeypatch):
    """The sender's cache of images is emptied with the receiver's; asserted on the engine's calls, as a CPU cannot sleep."""
    calls = []
    llm = worker.engine.llm
    for name in ("reset_prefix_cache", "reset_mm_cache"):
        real = getattr(llm, name)
        monkeypatch.setattr(llm, name, lambda real=real, name=name: (calls.append(name), real())[1])

    async def sleep(level):
        calls.append(f"sleep {level}")

    monkeypatch.setattr(llm, "sleep", sleep)

    await vllm_adapter.sleep(llm, 1)

    assert calls == ["reset_prefix_cache", "reset_mm_cache", "sleep 1"]
