"""A prefix cache that outlives a weight update would serve what older policies computed."""

from __future__ import annotations

import pytest

SLOT = "engine.enable_prefix_caching"
KEPT = {"refit.clear_cache": False}


def test_a_refit_that_keeps_the_cache_turns_prefix_caching_off(plan_for):
    assert plan_for("qwen3", KEPT).changes == {SLOT: False}
    assert plan_for("qwen3", {**KEPT, SLOT: False}).statuses == {SLOT: "already_set"}


def test_explicit_prefix_caching_is_refused_with_both_remedies(plan_for):
    (refusal,) = plan_for("qwen3", {**KEPT, SLOT: True}).refusals

    assert refusal.slot == SLOT
    assert "refit.clear_cache: true" in refusal.remedy
    assert "engine.enable_prefix_caching: false" in refusal.remedy


@pytest.mark.parametrize(
    "refit", [{}, {"refit.clear_cache": True}, {"refit.clear_cache": None}], ids=["open", "cleared", "null"]
)
def test_a_refit_that_clears_the_cache_leaves_prefix_caching_to_the_user(plan_for, refit):
    outcome = plan_for("qwen3", {**refit, SLOT: True})

    assert outcome.state == "not_matched"
    assert (outcome.plan.value("refit.clear_cache"), outcome.plan.value(SLOT)) == (True, True)
