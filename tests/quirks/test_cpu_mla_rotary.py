"""Latent attention on the CPU platform gets the rotary embedding by the formula."""

from __future__ import annotations

import pytest

from quirks_plugins.runs import MOONLIGHT

CPU = ("platform==cpu", "vllm==0.32.0")
COMPILATION = "engine.compilation_config"


@pytest.mark.parametrize("typed", [{}, {"mode": 0}])
def test_the_kernel_is_switched_off_and_what_else_was_typed_stays(plan_for, typed):
    outcome = plan_for(MOONLIGHT, {COMPILATION: typed} if typed else {}, assume=CPU)

    assert outcome.plan.changes[COMPILATION] == typed | {"custom_ops": ["-rotary_embedding"]}


@pytest.mark.parametrize(
    ("operations", "refused"),
    [
        (["all"], {"cpu-mla-rotary"}),
        (["none", "+rotary_embedding"], {"cpu-mla-rotary"}),
        (["none", "+rms_norm"], set()),
        (["all", "-rotary_embedding"], set()),
    ],
)
def test_a_typed_list_that_keeps_the_kernel_is_refused(plan_for, operations, refused):
    outcome = plan_for(MOONLIGHT, {COMPILATION: {"custom_ops": operations}}, assume=CPU)

    assert outcome.refused_by == refused
    assert COMPILATION not in outcome.plan.changes


def test_the_language_model_of_a_multimodal_one_counts(plan_for):
    assert plan_for({"model_type": "kimi_vl", "text_config": MOONLIGHT}, assume=CPU).state == "active"
