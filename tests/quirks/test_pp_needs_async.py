"""Pipeline parallelism belongs to the asynchronous engine."""

from __future__ import annotations

import pytest

QWEN3 = {"model_type": "qwen3"}


def test_several_stages_with_the_synchronous_engine_are_refused(plan_for):
    (refusal,) = plan_for(QWEN3, {"engine": {"pipeline_parallel_size": 2, "async_engine": False}}).refusals

    assert "asynchronous engine" in refusal.reason
    assert "engine.async_engine: true" in refusal.remedy
    assert "--disable pp-needs-async" in refusal.switch


@pytest.mark.parametrize("engine", [{"pipeline_parallel_size": 2}, {"async_engine": False}, {}])
def test_one_stage_or_the_asynchronous_engine_pass(plan_for, engine):
    assert plan_for(QWEN3, {"engine": engine}).refusals == []
