"""What a start leaves: the engine's own values, samples with all their fields, and no second engine beside it."""

from __future__ import annotations

import os

import pytest

from quirks_core.base.errors import QuirksError


def test_the_engines_own_values_are_read_back(worker):
    engine = worker.receipt.processes[1].engine

    assert engine["engine.logprobs_mode"] == "processed_logprobs"
    assert engine["engine.load_format"] == "dummy"
    assert engine["engine.enforce_eager"] is True
    assert engine["engine.async_scheduling"] is False  # the CPU's choice
    assert engine["engine.generation_config"] == "vllm"
    assert engine["engine.head_dtype"] == engine["engine.dtype"] == "float32"


async def test_a_second_start_of_the_same_worker_is_refused(worker):
    with pytest.raises(QuirksError, match="running already"):
        await worker.post_init_async()


async def test_a_second_engine_in_the_same_process_is_refused(worker, checkpoint, running):  # noqa: ARG001 - the worker is the first engine
    with pytest.raises(QuirksError, match="is in force in this process"):
        async with running(checkpoint("qwen3")):
            pass

    assert "MODEL_QUIRKS_PLAN" in os.environ
