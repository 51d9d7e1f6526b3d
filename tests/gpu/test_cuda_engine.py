"""The main line on a GPU: acknowledgements of every process, and the refit quirks in paired runs.

CI has no GPU; docs/results/gpu.md records the last results. The engine is its own reference: in bfloat16 no other computes
alike.
"""

from __future__ import annotations

import asyncio

import pytest
import torch

from quirks_core.facts.packages import gpu_capability
from worker import VllmAsyncGenerationWorker
from worker.batch import padded
from worker.lab.kit import checkpoints
from worker.refit import RefitScope

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

PROMPTS = (tuple(range(3, 27)), (100, 200, 300, 400, 50, 60, 70), tuple((7 * i * i + 11) % 500 + 5 for i in range(40)))
NEW_TOKENS = 24


def worker(model, values=None, **options):
    engine = {
        "enforce_eager": True,
        "max_model_len": 256,
        "gpu_memory_utilization": 0.3,
        "kv_cache_memory_bytes": 2 << 30,
        **(values or {}),
    }
    sampling = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    return VllmAsyncGenerationWorker({"model": str(model), "engine": engine, "sampling": sampling}, **options)


async def tokens(running):
    outputs = running.generate_async(padded(PROMPTS), greedy=True)
    found = {index: output["output_ids"][0].tolist() async for index, output in outputs}
    return [token for index, prompt in enumerate(PROMPTS) for token in found[index][len(prompt) :]]


def equal(one, other):
    return sum(a == b for a, b in zip(one, other, strict=True)) / len(one)


def trainer(model):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


async def paired(model, quirk):
    """Tokens of a real load, of dummy load plus the refit planned without the quirk, and of the one planned with it."""
    real = worker(model, {"load_format": "auto"})
    try:
        await real.post_init_async()
        expected = await tokens(real)
        processes = [ack.process for ack in real.receipt.processes]
    finally:
        await real.shutdown()
    dummy = worker(model, disable=[quirk])
    scope = RefitScope(worker(model).plan.value("refit.scope"))
    try:
        await dummy.post_init_async()
        await dummy.refit_async(trainer(model))
        without = await tokens(dummy)
        await dummy.refit_async(trainer(model), scope)
        with_quirk = await tokens(dummy)
    finally:
        await dummy.shutdown()
    return processes, expected, without, with_quirk


def test_dummy_load_plus_refit_is_right_for_gemma3_without_its_old_quirk(tmp_path):
    model = checkpoints.build("gemma3", tmp_path)

    processes, expected, without, _ = asyncio.run(paired(model, "gemma-normalizer-dummy-load"))

    assert processes[:2] == ["MainProcess", "EngineCore"]
    assert equal(without, expected) == 1.0


@pytest.mark.parametrize(("kind", "quirk"), [("gemma4", "gemma4-layer-scalar"), ("apertus", "apertus-xielu-buffers")])
def test_a_refit_of_parameters_is_right_only_with_the_quirk(kind, quirk, tmp_path):
    model = checkpoints.build(kind, tmp_path)

    _, expected, without, with_quirk = asyncio.run(paired(model, quirk))

    assert equal(without, expected) < 0.5
    assert equal(with_quirk, expected) == 1.0


def test_dummy_load_plus_refit_is_right_for_moe(tmp_path):
    model = checkpoints.build("qwen3_moe", tmp_path)

    _, expected, without, _ = asyncio.run(paired(model, "cpu-moe-expert-parallel"))

    assert equal(without, expected) == 1.0


def test_the_fact_about_the_gpu_is_what_torch_says():
    major, minor = torch.cuda.get_device_capability()

    assert gpu_capability() == 10 * major + minor
