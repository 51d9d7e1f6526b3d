"""Runs whose recipe says distillation may ask for as many logprobs as they like."""

from __future__ import annotations

import pytest

SLOT = "engine.max_logprobs"


@pytest.mark.parametrize("recipe", ["distillation-qwen3", "llama-gkd", "Distill-R1", "qwen3-opd", "mopd-v2"])
def test_a_recipe_that_says_distillation_has_no_cap_unless_one_was_typed(plan_for, recipe):
    outcome = plan_for("qwen3", {"recipe": recipe})

    assert outcome.changes == {SLOT: -1}
    assert plan_for("qwen3", {"recipe": recipe, SLOT: 64}).plan.value(SLOT) == 64


@pytest.mark.parametrize("settings", [{}, {"recipe": "grpo-qwen3"}, {"recipe": "copd"}])
def test_any_other_recipe_keeps_the_cap(plan_for, settings):
    assert plan_for("qwen3", settings).state == "not_matched"
