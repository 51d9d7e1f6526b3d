"""The gated delta net runs in bfloat16 on the CPU platform."""

from __future__ import annotations

import pytest

FLOAT32 = {"model_type": "qwen3_next", "dtype": "float32"}
CPU = ("platform==cpu", "vllm==0.32.0")


@pytest.mark.parametrize("settings", [{}, {"engine.dtype": "auto"}], ids=str)
def test_it_outranks_what_a_float32_checkpoint_would_get(plan_for, settings):
    outcome = plan_for(FLOAT32, settings, assume=CPU)

    assert outcome.changes == {"engine.dtype": "bfloat16"}
    assert outcome.plan.changes["engine.dtype"] == "bfloat16"


@pytest.mark.parametrize("dtype", ["float32", "float16", "half"])
def test_a_dtype_that_the_kernel_does_not_take_is_refused(plan_for, dtype):
    assert plan_for(FLOAT32, {"engine.dtype": dtype}, assume=CPU).refused_by == {"cpu-gdn-bfloat16"}


def test_what_serves_stays(plan_for):
    outcome = plan_for(FLOAT32, {"engine.dtype": "bfloat16"}, assume=CPU)

    assert outcome.refused_by == set()
    assert outcome.changes == {}
