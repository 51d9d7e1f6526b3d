"""Parity with CUDA graphs, sleep and a trainer on the same GPU; CI has no GPU, docs/parity.md has the last results."""

from __future__ import annotations

import pytest
import torch

from quirks_core.plan.switches import SwitchNames
from quirks_core.plugins.planning import PlanOptions
from worker import GenerationConfig
from worker.lab.attribution.run import run as ablate
from worker.lab.kit import checkpoints
from worker.lab.parity.run import Options, run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

_ENGINE = {
    "max_model_len": 256,
    "gpu_memory_utilization": 0.2,
    "kv_cache_memory_bytes": 2 << 30,
    "enable_sleep_mode": True,
    "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
}


@pytest.fixture
def measured(tmp_path):
    """Measures parity of a tiny model with CUDA graphs."""

    async def measure(kind, values, *, attribute=(), disable=(), **options):
        model = checkpoints.build(kind, tmp_path)
        engine = {**_ENGINE, **values.pop("engine", {})}
        config = GenerationConfig.parse({"model": str(model), "engine": engine, **values})
        planning = PlanOptions.gather(config, call=SwitchNames(disable))
        chosen = Options(**{"new_tokens": 32, "planning": planning, **options})
        return await (ablate(config, chosen, settings=attribute) if attribute else run(config, chosen))

    return measure


# No MoE: the router of a tiny random one flips on rounding alone, for transformers against itself as well.
@pytest.mark.parametrize("kind", ["gemma3", "qwen3", "apertus"])
async def test_every_scenario_is_within_rounding_under_the_plan(measured, kind):
    report = await measured(kind, {"engine": {"dtype": "bfloat16"}}, profile="bfloat16")

    levels = {result.scenario: result.level for result in report.results if result.gates and result.status == "measured"}
    assert report.passed, levels
    assert {"cold-start", "prefix-cache", "after-refit", "long-context", "sleep-wake"} <= levels.keys()


async def test_a_planted_fault_is_blamed_on_its_setting(measured):
    values = {"refit": {"clear_cache": False}}
    options = {"profile": "bfloat16", "scenarios": ("after-refit",), "disable": ("prefix-cache-after-update",)}
    report = await measured("qwen3", values, attribute=("refit.clear_cache", "train.attn_implementation"), **options)

    assert not report.passed
    first = report.attributions[0]
    assert (first.setting, "after-refit" in first.restores) == ("refit.clear_cache", True)
