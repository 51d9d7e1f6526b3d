"""A hybrid model that sleeps has no FP8 KV cache before vLLM 0.27.0."""

from __future__ import annotations

import pytest

FP8 = {"engine.kv_cache_dtype": "fp8_e4m3", "engine.enable_sleep_mode": True}


@pytest.mark.parametrize(("version", "count"), [("0.26.0", 1), ("0.27.0", 0)])
def test_it_is_refused_with_both_remedies_until_the_fix(plan_for, version, count):
    refusals = plan_for("nemotron_h", FP8, assume=[f"vllm=={version}"]).refusals

    assert len(refusals) == count
    assert all("engine.enable_sleep_mode: false" in refusal.remedy for refusal in refusals)
