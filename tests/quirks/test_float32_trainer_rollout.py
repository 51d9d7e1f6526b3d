"""A rollout for a float32 trainer gets advice where its engine computes in less."""

from __future__ import annotations

import pytest

BFLOAT16 = {"model_type": "qwen3", "dtype": "bfloat16"}
FLOAT32 = {"train.dtype": "float32"}


@pytest.mark.parametrize("dtype", [None, "auto", "bfloat16", "half"])
def test_the_dtype_is_advised_with_its_cost_and_nothing_is_changed(plan_for, dtype):
    outcome = plan_for(BFLOAT16, {**FLOAT32, **({"engine.dtype": dtype} if dtype else {})})

    (warning,) = outcome.warnings
    assert "set engine.dtype=float32, which costs twice the memory" in warning
    assert outcome.changes == {}
    assert "engine.dtype" not in outcome.plan.changes


@pytest.mark.parametrize("settings", [{}, {"train.dtype": "bfloat16"}, {**FLOAT32, "engine.dtype": "float32"}], ids=str)
def test_without_a_known_difference_there_is_no_word(plan_for, settings):
    outcome = plan_for(BFLOAT16, settings)

    assert (outcome.state, outcome.warnings) == ("not_matched", [])


def test_a_float32_checkpoint_has_its_own_quirk(plan_for):
    outcome = plan_for({"model_type": "qwen3", "dtype": "float32"}, FLOAT32)

    assert outcome.state == "not_matched"
    assert outcome.plan.changes["engine.dtype"] == "float32"
