"""Requests whose outputs are held in the engine core: the same samples in fewer messages, whatever ends or interrupts them.

Requests with the mark and without it go to the same engine, so that nothing but the holding differs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

import httpx
import pytest
from patience import HUNG_S, settled

from worker.engine import vllm_adapter

#: Long enough that something can happen in the middle.
LONG = 400
#: Blocks of the KV cache, of 128 tokens each: too few for three long requests at once.
BLOCKS = 11
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
VALUES = {
    "engine": {
        "load_format": "auto",
        "max_model_len": 1024,
        "enable_prefix_caching": True,
        "num_gpu_blocks_override": BLOCKS,
    },
    "server": {"enabled": True, "chat_template": TEMPLATE},
}
#: Arguments of an engine that makes several tokens in a step.
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


class Front:
    """An engine's front end, with a count of the outputs that reach it."""

    def __init__(self, worker, wait):
        self.worker, self.llm, self._wait = worker, worker.engine.llm, wait
        self.arrived = Counter()
        self._number = 0
        processor = self.llm.output_processor
        process = processor.process_outputs

        def counted(outputs, *args, **named):
            self.arrived.update(output.request_id for output in outputs)
            return process(outputs, *args, **named)

        processor.process_outputs = counted

    def params(self, *, coalesce, **values):
        """What the worker asks for, changed."""
        made = vllm_adapter.sampling_params(
            self.worker.config.sampling, greedy=True, max_tokens=values.pop("max_tokens", 24), coalesce=coalesce
        )
        for name, value in values.items():
            setattr(made, name, value)
        return made

    async def ask(self, prompt, *, coalesce, **values):
        """The final output of one request, and how many outputs of it arrived."""
        self._number += 1
        name = f"request{self._number}"
        async with asyncio.timeout(HUNG_S):
            params = self.params(coalesce=coalesce, **values)
            async for output in self.llm.generate({"prompt_token_ids": list(prompt)}, params, name):
                final = output
        found = [
            SimpleNamespace(
                tokens=list(one.token_ids),
                logprobs=list(one.logprobs.logprobs),
                ranks=list(one.logprobs.ranks),
                ids=list(one.logprobs.token_ids),
                total=one.cumulative_logprob,
                reason=(one.finish_reason, one.stop_reason),
                spans=[(span.version, span.start, span.end) for span in one.weight_versions],
            )
            for one in final.outputs
        ]
        # vLLM appends letters to a request's name, and puts the number of a sample in front of it.
        counts = [count for key, count in self.arrived.items() if key.split("_")[-1].split("-")[0] == name]
        return SimpleNamespace(samples=found, cached=final.num_cached_tokens, counts=counts)

    async def both(self, prompts, **values):
        """The same requests, held and not, one set after the other."""
        sets = []
        for coalesce in (True, False):
            await self.worker.reset_prefix_cache_async()
            sets.append(await asyncio.gather(*(self.ask(prompt, coalesce=coalesce, **values) for prompt in prompts)))
        return sets

    @asynccontextmanager
    async def under_way(self, prompts, **values):
        """Tasks of requests that have made some tokens each."""
        asking = [asyncio.create_task(self.ask(prompt, coalesce=True, **values)) for prompt in prompts]
        try:
            await self._wait(self.worker, len(prompts))
            yield asking
        finally:
            for task in asking:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*asking, return_exceptions=True)


@pytest.fixture(scope="module", params=[{}])
async def started(request, checkpoint, running, under_way):
    """An engine with a server, and little KV cache."""
    async with running(checkpoint("qwen3"), {**VALUES, "engine": {**VALUES["engine"], **request.param}}) as worker:
        yield Front(worker, under_way)


@pytest.fixture
async def front(started):
    """The engine; a test must leave nothing in it."""
    yield started

    async def is_idle():
        return not await started.worker.engine.generated_so_far()

    await settled(is_idle)
    assert started.llm.output_processor.get_num_unfinished_requests() == 0


def same(held, sent):
    """Samples are equal, up to the noise of logprobs: which requests share a step, and so a product of matrices, varies."""
    pairs = zip((one for row in held for one in row.samples), (one for row in sent for one in row.samples), strict=True)
    return all(
        (one.tokens, one.ids, one.reason, one.spans) == (other.tokens, other.ids, other.reason, other.spans)
        and one.ranks == pytest.approx(other.ranks, abs=1)
        and one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        and one.total == pytest.approx(other.total, abs=1e-2)
        for one, other in pairs
    )


def counts(requests):
    return [count for request in requests for count in request.counts]


@pytest.mark.parametrize("tokens", [200, LONG], ids=["together", "preempted"])
async def test_coalesced_outputs_are_those_that_arrive_step_by_step(front, lab, tokens):
    assert len(lab.PROMPTS) * (LONG // 128 + 1) > BLOCKS

    held, sent = await front.both(lab.PROMPTS, max_tokens=tokens)

    assert same(held, sent)
    assert (counts(held), counts(sent)) == ([1, 1, 1], [tokens] * 3)
    assert all(len(one.logprobs) == len(one.ids) == tokens for request in held for one in request.samples)


async def test_seeded_samples_of_one_prompt_are_held_each_by_itself(front, lab):
    held, sent = await front.both(lab.PROMPTS, n=3, seed=7, temperature=1.0)

    assert same(held, sent)
    assert (counts(held), counts(sent)) == ([1] * 9, [24] * 9)
    assert len({tuple(one.tokens) for request in held for one in request.samples}) == 9


@pytest.mark.parametrize("started", [{"speculative_config": DRAFTS}], indirect=True)
async def test_steps_that_made_several_tokens_are_joined_as_well(front, lab):
    prompts = [*lab.PROMPTS, (5, 6, 7) * 20]

    held, sent = await front.both(prompts, max_tokens=200)

    assert same(held, sent)
    assert counts(held) == [1] * 4
    assert max(counts(sent)) < 200


async def test_a_stop_token_ends_a_request_where_it_would_have_ended(front, lab):
    ((whole,), _) = await front.both(lab.PROMPTS[:1])
    stop = whole.samples[0].tokens[9]
    length = whole.samples[0].tokens.index(stop) + 1

    (held,), (sent,) = await front.both(lab.PROMPTS[:1], stop_token_ids=[stop])

    assert same([held], [sent])
    assert held.samples[0].reason == ("stop", stop)
    assert len(held.samples[0].tokens) == length
    assert (held.counts, sent.counts) == ([1], [length])


async def test_neighbours_with_more_logprobs_change_nothing(front, lab):
    alone = await front.ask(lab.PROMPTS[0], coalesce=True)
    neighbour = asyncio.create_task(front.ask(lab.PROMPTS[1], coalesce=True, logprobs=5, max_tokens=12))
    beside = await front.ask(lab.PROMPTS[0], coalesce=True)
    several = await neighbour
    (expected,) = (await front.both(lab.PROMPTS[1:2], logprobs=5, max_tokens=12))[1]

    assert vars(alone.samples[0])["tokens"] == beside.samples[0].tokens
    assert beside.samples[0].logprobs == pytest.approx(alone.samples[0].logprobs, abs=1e-5)
    assert (beside.counts, several.counts, len(several.samples[0].logprobs)) == ([1], [12], 12 * 6)
    assert several.samples[0].ids == expected.samples[0].ids
    assert several.samples[0].logprobs == pytest.approx(expected.samples[0].logprobs, abs=1e-5)


async def test_a_prompt_from_the_prefix_cache_is_counted_as_one(front):
    prompt = [(7 * place + 11) % 500 + 5 for place in range(300)]
    await front.worker.reset_prefix_cache_async()

    first, again = [await front.ask(prompt, coalesce=True) for _ in range(2)]
    sent = await front.ask(prompt, coalesce=False)

    assert (first.cached, again.cached, sent.cached) == (0, 256, 256)
    assert again.samples[0].tokens == first.samples[0].tokens == sent.samples[0].tokens


async def test_tokens_keep_the_label_of_the_weights_that_made_them(front, lab):
    core = front.llm.engine_core
    async with front.under_way(lab.PROMPTS, max_tokens=LONG) as asking:
        await core.set_weight_version_async("later")  # without a pause
        asked = await asyncio.gather(*asking)
    await core.set_weight_version_async("default")
    _, sent = await front.both(lab.PROMPTS, max_tokens=LONG)

    for request, other in zip(asked, sent, strict=True):
        ((first, start, middle), (second, again, end)) = request.samples[0].spans
        assert (first, start, second, end) == ("default", 0, "later", LONG)
        assert 10 <= middle == again < LONG
        assert request.samples[0].tokens == other.samples[0].tokens
        assert request.counts == [2]


@pytest.mark.parametrize("clear_cache", [True, False])
async def test_a_pause_that_keeps_requests_loses_none_of_their_tokens(front, lab, clear_cache):
    async with front.under_way(lab.PROMPTS, max_tokens=LONG) as asking:
        await front.worker.pause_async("keep", clear_cache=clear_cache)
        await front.worker.resume_async()
        held = await asyncio.gather(*asking)
    _, sent = await front.both(lab.PROMPTS, max_tokens=LONG)

    assert [request.samples[0].tokens for request in held] == [request.samples[0].tokens for request in sent]
    assert all(len(request.samples[0].logprobs) == LONG for request in held)


async def test_requests_that_a_pause_ends_keep_their_tokens(front, lab):
    _, sent = await front.both(lab.PROMPTS, max_tokens=LONG)
    async with front.under_way(lab.PROMPTS, max_tokens=LONG) as asking:
        await front.llm.pause_generation(mode="abort")
        ended = await asyncio.gather(*asking)
        await front.worker.resume_async()

    for request, whole in zip(ended, sent, strict=True):
        (one,) = request.samples
        assert one.reason == ("abort", None)
        assert 10 <= len(one.tokens) == len(one.logprobs) < LONG
        assert one.tokens == whole.samples[0].tokens[: len(one.tokens)]
        assert request.counts == [2]  # what was held, and the end


async def test_a_step_by_step_sample_ends_at_its_stop_string(front, lab, monkeypatch):
    front.arrived.clear()
    decode = front.llm.get_tokenizer().decode
    whole = await lab.greedy(front.worker)
    stop = decode(list(whole[0].tokens))[8:12]
    front.arrived.clear()
    longer = front.worker.requests.sampling.model_copy(update={"max_new_tokens": LONG})
    monkeypatch.setattr(front.worker.requests, "sampling", longer)

    batch = lab.batch_of(lab.PROMPTS[:1]) | {"stop_strings": [[stop]]}
    ((_, output),) = [item async for item in front.worker.generate_async(batch, greedy=True)]

    made = output["output_ids"][0, len(lab.PROMPTS[0]) :].tolist()
    assert made == list(whole[0].tokens[: len(made)])
    assert 1 < len(made) < len(whole[0].tokens)
    assert len(made) <= next(iter(front.arrived.values())) < LONG  # some more came until the engine heard of the end


async def test_an_http_stream_goes_on_streaming_beside_a_rollout(front, lab):
    front.arrived.clear()
    url = await front.worker.report_dp_openai_server_base_url()
    headers = {"Authorization": f"Bearer {front.worker.openai_api_key}"}
    body = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 40, "ignore_eos": True}
    async with (
        httpx.AsyncClient(headers=headers, timeout=HUNG_S) as http,
        front.under_way(lab.PROMPTS, max_tokens=LONG) as asking,
    ):
        async with http.stream("POST", f"{url}/chat/completions", json=body | {"stream": True}) as reply:
            lines = reply.aiter_lines()
            chunks = [any(task.done() for task in asking) async for line in lines if line.startswith("data: {")]
        plain = await http.post(f"{url}/chat/completions", json=body)
        held = await asyncio.gather(*asking)

    assert len(chunks) > 2  # the role, and the text in pieces: a front end that is late sends several tokens in one
    assert not any(chunks)  # all came while the rollout was under way
    assert plain.json()["usage"]["completion_tokens"] == 40
    assert counts(held) == [1, 1, 1]
    assert sorted(front.arrived.values()) == [1, 1, 1, 40, 40]
