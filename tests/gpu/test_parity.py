"""Parity with CUDA graphs, sleep and a trainer on the same GPU; CI has no GPU, docs/parity.md has the last results."""

from __future__ import annotations

import pytest
import torch

from quirks_core.plugins.planning import PlanOptions
from worker import GenerationConfig
from worker.lab.kit import checkpoints
from worker.lab.parity.run import Options, run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

ENGINE = {
    "dtype": "bfloat16",
    "max_model_len": 256,
    "gpu_memory_utilization": 0.2,
    "kv_cache_memory_bytes": 2 << 30,
    "enable_sleep_mode": True,
    "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
}


# No MoE: the router of a tiny random one flips on rounding alone, for transformers against itself as well.
@pytest.mark.parametrize("kind", ["gemma3", "qwen3", "apertus"])
async def test_every_scenario_is_within_rounding_under_the_plan(tmp_path, kind):
    model = checkpoints.build(kind, tmp_path)
    config = GenerationConfig.parse({"model": str(model), "engine": ENGINE})
    report = await run(config, Options(new_tokens=32, planning=PlanOptions.gather(config), profile="bfloat16"))

    levels = {result.scenario: result.level for result in report.results if result.gates and result.status == "measured"}
    assert report.passed, levels
    assert {"cold-start", "prefix-cache", "after-refit", "long-context", "sleep-wake"} <= levels.keys()
