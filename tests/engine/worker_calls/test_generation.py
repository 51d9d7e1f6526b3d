"""Generation through the worker: order, ends, limits, and requests that nobody wants any more."""

from __future__ import annotations

import asyncio

import pytest

from worker.errors import BatchError, GenerationTimeoutError

LONGEST, NEW_TOKENS = 1024, 24


async def collected(worker, batch):
    """Outputs in the order of their indices, and the order in which they came."""
    came = [item async for item in worker.generate_async(batch, greedy=True)]
    return [output for _, output in sorted(came, key=lambda item: item[0])], [index for index, _ in came]


def new_tokens(output, prompt):
    return output["output_ids"][0, len(prompt) :].tolist()


async def test_samples_come_as_they_finish_with_their_own_index(worker, lab):
    rows = [lab.PROMPTS[0], [7] * (LONGEST - 2), lab.PROMPTS[1], [7] * LONGEST]

    outputs, came = await collected(worker, lab.batch_of(rows))

    assert came[:2] == [3, 1]  # nothing to generate, and two tokens
    assert [int(output["generation_lengths"]) for output in outputs] == [NEW_TOKENS, 2, NEW_TOKENS, 0]
    assert all(output["output_ids"][0, : len(row)].tolist() == list(row) for output, row in zip(outputs, rows, strict=True))
    full = outputs[3]
    assert (full["logprobs"].tolist(), full["truncated"].item(), full["weight_versions"]) == ([[0.0] * LONGEST], False, [[]])


async def test_a_step_holds_as_many_requests_as_one_of_llm(worker):
    """By itself ``AsyncLLM`` holds half as many or fewer."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    tokens, requests = (limits[UsageContext.LLM_CLASS] for limits in EngineArgs.get_batch_defaults(1))
    taken = worker.engine.llm.vllm_config.scheduler_config

    assert (taken.max_num_batched_tokens, taken.max_num_seqs) == (tokens, requests)


async def test_a_prompt_longer_than_the_context_is_refused(worker, lab):
    with pytest.raises(BatchError, match=r"rows \[1\] are empty, or longer than engine\.max_model_len = 1024"):
        await collected(worker, lab.batch_of([[7], [7] * (LONGEST + 1)]))


async def test_a_stop_string_of_one_sample_ends_every_sample(worker, lab, policies):
    decode = worker.engine.llm.get_tokenizer().decode
    whole = [list(row.tokens) for row in policies.a.tokens]
    stop = decode(whole[1])[8:12]
    batch = lab.batch_of(lab.PROMPTS) | {"stop_strings": [[stop], None, None]}

    outputs, _ = await collected(worker, batch)

    made = [new_tokens(output, prompt) for output, prompt in zip(outputs, lab.PROMPTS, strict=True)]
    assert all(tokens == row[: len(tokens)] for tokens, row in zip(made, whole, strict=True))
    for tokens, row in zip(made, whole, strict=True):
        assert (stop in decode(tokens)) == (stop in decode(row))
        assert stop not in decode(tokens[:-1])
    assert len(made[1]) < NEW_TOKENS
    assert [output["truncated"].item() for output in outputs] == [len(tokens) == NEW_TOKENS for tokens in made]


async def test_text_stops_at_a_stop_string_too(worker):
    async def text(**more):
        prompts = {"prompts": ["Hello world"], **more}
        (output,) = [output async for _, output in worker.generate_text_async(prompts, greedy=True)]
        return output["texts"][0]

    whole = await text()

    assert await text(stop_strings=[[whole[5:8]]]) == whole[: whole.index(whole[5:8]) + 3]


async def test_a_stop_token_waits_for_the_fewest_tokens(worker, lab, policies, sampling):
    stop = policies.a.tokens[0].tokens[2]
    lengths = []

    for fewest in (0, 12):
        sampling(stop_token_ids=(stop,), min_new_tokens=fewest)
        (output,), _ = await collected(worker, lab.batch_of(lab.PROMPTS[:1]))
        lengths.append(int(output["generation_lengths"]))
        assert output["truncated"].item() == (lengths[-1] == NEW_TOKENS)

    assert lengths[0] <= 3
    assert lengths[1] >= 12


async def test_a_cancelled_consumer_takes_its_requests_along(worker, lab, sampling, generated, unfinished):
    sampling(max_new_tokens=900)
    consumer = asyncio.create_task(collected(worker, lab.batch_of(lab.PROMPTS)))
    await generated(requests=3)
    assert await worker.reset_prefix_cache_async() is False  # a busy engine cannot

    consumer.cancel()

    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert unfinished() == 0


async def test_a_consumer_that_leaves_takes_its_requests_along(worker, lab, sampling, unfinished):
    sampling(max_new_tokens=900)
    samples = worker.generate_async(lab.batch_of([[7] * (LONGEST - 2), *lab.PROMPTS]))

    index, _ = await anext(samples)
    before = unfinished()
    await samples.aclose()

    assert (index, before, unfinished()) == (0, 3, 0)


async def test_two_consumers_get_their_own_samples(worker, lab, policies):
    (one, _), (other, _) = await asyncio.gather(
        collected(worker, lab.batch_of(lab.PROMPTS[:2])), collected(worker, lab.batch_of(lab.PROMPTS[2:]))
    )

    made = [tuple(new_tokens(output, prompt)) for output, prompt in zip([*one, *other], lab.PROMPTS, strict=True)]
    assert made == [row.tokens for row in policies.a.tokens]


async def test_a_sample_over_its_time_limit_is_aborted_last(worker, lab, sampling, unfinished, monkeypatch):
    """The others are yielded first."""
    sampling(max_new_tokens=900)
    monkeypatch.setattr(worker.requests, "timeout_s", 4.0)
    samples = worker.generate_async(lab.batch_of([lab.PROMPTS[0], [7] * (LONGEST - 2), [7] * LONGEST]))
    llm = worker.engine.llm
    came = []

    async def consume():
        async for index, _ in samples:
            came.append(index)
            if index == 1:
                await llm.pause_generation(mode="keep", clear_cache=False)  # the engine is slow from now on

    try:
        with pytest.raises(GenerationTimeoutError) as caught:
            await consume()
    finally:
        await llm.resume_generation()

    assert came == [2, 1]
    assert str(caught.value) == (
        "sample 0 took longer than request.timeout_s = 4 s, and was aborted; "
        "raise it with request.timeout_s or export NRL_VLLM_ASYNC_TIMEOUT_SECONDS=8"
    )
    assert unfinished() == 0


async def test_every_sample_over_the_limit_is_named(worker, lab, monkeypatch):
    monkeypatch.setattr(worker.requests, "timeout_s", 0.001)

    with pytest.raises(GenerationTimeoutError, match=r"sample 0, 1, 2 took longer .* and was aborted"):
        await collected(worker, lab.batch_of(lab.PROMPTS))


async def test_a_seeded_sample_does_not_depend_on_its_company(worker, lab):

    async def sampled(prompts, seeds):
        batch = {**lab.batch_of(prompts), "seeds": seeds}
        return {index: output["output_ids"].tolist() async for index, output in worker.generate_async(batch)}

    alone = await sampled(lab.PROMPTS[:1], [7])
    among = await sampled([*lab.PROMPTS, lab.PROMPTS[0]], [1, 2, 3, 7])
    other = await sampled(lab.PROMPTS[:1], [8])

    assert among[3] == alone[0]
    assert other[0] != alone[0]
