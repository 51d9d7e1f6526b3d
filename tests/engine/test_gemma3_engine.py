"""One Gemma-3 engine from dummy weights: the main line, the worker's promises, and two quirks in a paired run."""

from __future__ import annotations

import asyncio
import os

import pytest
import pytest_asyncio
import torch

from quirks_core import ModelFlag
from quirks_core.base.errors import QuirksError
from quirks_core.plan.records import State, Status
from worker.batch import collate
from worker.errors import BatchError, GenerationTimeoutError

_TEMPERATURE = 0.5


@pytest.fixture(scope="module")
def trainer(checkpoint, lab):
    return lab.trainer(checkpoint("gemma3"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def worker(checkpoint, running, trainer):
    """An engine that started from dummy weights and got the trainer's by a refit."""
    async with running(checkpoint("gemma3"), {"sampling": {"temperature": _TEMPERATURE}}) as started:
        await started.refit_async(trainer)
        yield started


def test_a_rollout_of_gemma3_starts_from_dummy_weights(worker):
    """A rollout starts from dummy weights because the old quirk is dormant."""
    verdict = next(item for item in worker.plan.verdicts if item.id == "gemma-normalizer-dummy-load")

    assert verdict.state is State.DORMANT
    assert verdict.because == f"packages.vllm: wanted < 0.9.2, got {worker.plan.context.packages['vllm']}"
    assert worker.plan.value("engine.load_format") == "dummy"


async def test_gemma3_from_dummy_weights_is_right_after_a_refit(worker, trainer, lab):
    """Quirk gemma-normalizer-dummy-load, shown unnecessary: the refit sends parameters only and the output is right."""
    expected = lab.reference(trainer)

    got = await lab.generate(worker)

    assert worker.plan.value("refit.scope") == "parameters"
    assert lab.same_tokens(got, expected).passed
    assert lab.largest_difference(got, lab.rescored(trainer, got)) < 1e-3


async def test_rollout_logprobs_are_the_sampled_distribution_s(worker, trainer, lab):
    """Quirk rollout-logprobs-processed, with: the other half is a planted fault among the tests of parity."""
    got = await lab.generate(worker, greedy=False)

    assert lab.largest_difference(got, lab.rescored(trainer, got, _TEMPERATURE)) < 1e-3


def test_every_process_acknowledges_the_same_plan(worker):
    receipt = worker.receipt

    assert {ack.digest for ack in receipt.processes} == {worker.plan.digest}
    assert [ack.process for ack in receipt.processes] == ["MainProcess", "EngineCore"]
    assert receipt.processes[0].pid == os.getpid()


def test_the_engines_own_values_are_read_back(worker):
    engine = worker.receipt.processes[1].engine

    assert engine["engine.logprobs_mode"] == "processed_logprobs"
    assert engine["engine.load_format"] == "dummy"
    assert engine["engine.enforce_eager"] is True
    assert engine["engine.async_scheduling"] is False  # the CPU's choice
    assert engine["engine.generation_config"] == "vllm"
    assert engine["engine.head_dtype"] == engine["engine.dtype"] == "float32"


def test_the_plan_answers_by_flag(worker):
    adjustments = {adjustment.slot: adjustment.status for adjustment in worker.plan[ModelFlag.LOGPROBS]}

    assert adjustments == {"engine.logprobs_mode": Status.APPLIED, "engine.generation_config": Status.APPLIED}


async def test_samples_come_back_with_every_promised_field(worker, lab):
    outputs = {index: output async for index, output in worker.generate_async(lab.batch_of(lab.PROMPTS))}

    assert sorted(outputs) == [0, 1, 2]
    for index, prompt in enumerate(lab.PROMPTS):
        output = outputs[index]
        assert output["output_ids"].shape == output["logprobs"].shape == (1, len(prompt) + lab.NEW_TOKENS)
        assert output["output_ids"][0, : len(prompt)].tolist() == list(prompt)
        assert torch.all(output["logprobs"][0, : len(prompt)] == 0.0)
        assert torch.all(output["logprobs"][0, len(prompt) :] < 0.0)
        assert output["generation_lengths"].tolist() == [lab.NEW_TOKENS]
        assert output["unpadded_sequence_lengths"].tolist() == [len(prompt) + lab.NEW_TOKENS]
        assert output["truncated"].tolist() == [True]


async def test_finished_samples_can_be_put_back_into_one_batch(worker, lab):
    samples = [item async for item in worker.generate_async(lab.batch_of(lab.PROMPTS))]

    whole = collate(samples, pad_token_id=0)

    longest = max(map(len, lab.PROMPTS)) + lab.NEW_TOKENS
    assert whole["output_ids"].shape == whole["logprobs"].shape == (3, longest)
    assert whole["output_ids"][1, : len(lab.PROMPTS[1])].tolist() == list(lab.PROMPTS[1])


async def test_a_prompt_that_fills_the_context_generates_nothing(worker, lab):
    """A prompt that fills the context comes back with nothing generated."""
    prompt = [7] * 256

    outputs = [item async for item in worker.generate_async(lab.batch_of([prompt]))]

    ((index, output),) = outputs
    assert (index, output["generation_lengths"].tolist(), output["truncated"].tolist()) == (0, [0], [False])
    assert output["output_ids"].tolist() == [prompt]


async def test_a_prompt_near_the_end_generates_what_fits(worker, lab):
    """A prompt near the end of the context generates as much as fits."""
    outputs = [item async for item in worker.generate_async(lab.batch_of([[7] * 250]))]

    assert outputs[0][1]["generation_lengths"].tolist() == [6]


async def test_greedy_generation_repeats_itself(worker, lab):
    assert await lab.generate(worker) == await lab.generate(worker)


async def test_text_comes_back_for_text(worker):
    prompts = ["Hello world", "one, two"]

    texts = {index: output async for index, output in worker.generate_text_async({"prompts": prompts}, greedy=True)}

    assert sorted(texts) == [0, 1]
    assert all(isinstance(output["texts"][0], str) and output["texts"][0] for output in texts.values())


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({}, "'input_ids' is missing; 'input_lengths' is missing"),
        ({"input_ids": torch.ones(2, 3), "input_lengths": torch.tensor([3, 3])}, "integer tensor with 2 dimensions"),
        ({"input_ids": torch.ones(2, 3, dtype=torch.int64), "input_lengths": torch.tensor([3, 4])}, r"row 1: input length 4"),
        ({"input_ids": torch.ones(1, 300, dtype=torch.int64), "input_lengths": torch.tensor([300])}, "longer than"),
    ],
)
async def test_a_wrong_batch_is_refused_before_anything_is_sent(worker, batch, message):
    with pytest.raises(BatchError, match=message):
        await anext(worker.generate_async(batch))


@pytest.fixture
def sampling(worker, monkeypatch):
    """Changes how the running worker samples, for one test."""

    def change(**values):
        monkeypatch.setattr(worker.requests, "sampling", worker.requests.sampling.model_copy(update=values))

    return change


def unfinished(worker):
    """How many requests the engine still works on."""
    return worker.engine.llm.output_processor.get_num_unfinished_requests()


async def test_a_generation_that_ends_at_a_stop_token_is_not_truncated(worker, lab, sampling):
    third = (await lab.generate(worker))[0].tokens[2]
    sampling(stop_token_ids=(third,))

    ((_, output),) = [item async for item in worker.generate_async(lab.batch_of(lab.PROMPTS[:1]), greedy=True)]

    assert output["output_ids"][0, -1].item() == third
    assert output["generation_lengths"].item() <= 3
    assert output["truncated"].tolist() == [False]


async def test_leaving_the_loop_early_aborts_the_rest(worker, lab, sampling):
    """Leaving the loop early aborts the rest without harm to the engine."""
    sampling(max_new_tokens=200)
    rows = worker.generate_async(lab.batch_of([[7] * 254, *lab.PROMPTS]))  # the first has room for two tokens

    index, _ = await anext(rows)
    before = unfinished(worker)
    await rows.aclose()

    assert (index, before, unfinished(worker)) == (0, 3, 0)
    assert len(await lab.generate(worker)) == 3


async def test_a_request_over_its_time_limit_says_how_to_raise_it(worker, lab, monkeypatch):
    monkeypatch.setattr(worker.requests, "timeout_s", 0.001)

    with pytest.raises(GenerationTimeoutError, match=r"request\.timeout_s = 0\.001 s, .* NRL_VLLM_ASYNC_TIMEOUT_SECONDS"):
        await lab.generate(worker)


async def test_requests_in_flight_survive_a_refit(worker, trainer, lab, sampling):
    sampling(max_new_tokens=200)
    rows = asyncio.create_task(_lengths(worker, lab))
    while not unfinished(worker):  # noqa: ASYNC110 - the engine offers no event for it
        await asyncio.sleep(0.01)

    await worker.refit_async(trainer)
    in_flight = unfinished(worker)

    assert in_flight == 3
    assert await rows == [200] * 3


async def test_a_second_start_of_the_same_worker_is_refused(worker):
    with pytest.raises(QuirksError, match="running already"):
        await worker.post_init_async()


async def test_a_second_engine_in_the_same_process_is_refused(worker, checkpoint, running):  # noqa: ARG001 - the worker is the first engine
    with pytest.raises(QuirksError, match="is in force in this process"):
        async with running(checkpoint("qwen3")):
            pass

    assert "MODEL_QUIRKS_PLAN" in os.environ


async def _lengths(worker, lab):
    return [int(output["generation_lengths"]) async for _, output in worker.generate_async(lab.batch_of(lab.PROMPTS))]
