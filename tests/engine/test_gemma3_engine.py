"""One Gemma-3 engine from dummy weights: the main line, and two quirks in a paired run.

What else a worker promises is in `worker_calls`.
"""

from __future__ import annotations

import os

import pytest
import pytest_asyncio
import torch

from quirks_core.base.errors import QuirksError
from quirks_core.plan.records import State

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
    verdict = next(item for item in worker.plan.verdicts if item.id == "gemma-normalizer-dummy-load")

    assert verdict.state is State.DORMANT
    assert verdict.because == f"packages.vllm: wanted < 0.9.2, got {worker.plan.context.packages['vllm']}"
    assert worker.plan.value("engine.load_format") == "dummy"


async def test_gemma3_from_dummy_weights_is_right_after_a_refit(worker, trainer, lab):
    """Quirk gemma-normalizer-dummy-load, shown unnecessary: the refit sends parameters only and the output is right."""
    expected = lab.reference(trainer)

    got = await lab.greedy(worker)

    assert worker.plan.value("refit.scope") == "parameters"
    assert lab.same_tokens(got, expected).passed
    assert lab.largest_difference(got, lab.rescored(trainer, got)) < 1e-3


async def test_rollout_logprobs_are_the_sampled_distribution_s(worker, trainer, lab):
    """Quirk rollout-logprobs-processed, with: the other half is a planted fault among the tests of parity."""
    got = await lab.sample(worker)

    assert lab.largest_difference(got, lab.rescored(trainer, got, _TEMPERATURE)) < 1e-3


def test_the_engines_own_values_are_read_back(worker):
    engine = worker.receipt.processes[1].engine

    assert engine["engine.logprobs_mode"] == "processed_logprobs"
    assert engine["engine.load_format"] == "dummy"
    assert engine["engine.enforce_eager"] is True
    assert engine["engine.async_scheduling"] is False  # the CPU's choice
    assert engine["engine.generation_config"] == "vllm"
    assert engine["engine.head_dtype"] == engine["engine.dtype"] == "float32"


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


async def test_a_second_start_of_the_same_worker_is_refused(worker):
    with pytest.raises(QuirksError, match="running already"):
        await worker.post_init_async()


async def test_a_second_engine_in_the_same_process_is_refused(worker, checkpoint, running):  # noqa: ARG001 - the worker is the first engine
    with pytest.raises(QuirksError, match="is in force in this process"):
        async with running(checkpoint("qwen3")):
            pass

    assert "MODEL_QUIRKS_PLAN" in os.environ
