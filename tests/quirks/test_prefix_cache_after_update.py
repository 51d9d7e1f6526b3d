"""A prefix cache that outlives a weight update would serve what older policies computed."""

from __future__ import annotations

import pytest

QWEN3 = {"model_type": "qwen3"}
KEPT = {"refit": {"clear_cache": False}}


def test_a_refit_that_keeps_the_cache_turns_prefix_caching_off(plan_for):
    outcome = plan_for(QWEN3, KEPT)

    assert outcome.changes == {"engine.enable_prefix_caching": False}
    assert outcome.adjustments["engine.enable_prefix_caching"].strength == "require"


def test_explicit_prefix_caching_is_refused_with_both_remedies_and_the_switch(plan_for):
    outcome = plan_for(QWEN3, {**KEPT, "engine": {"enable_prefix_caching": True}})

    (refusal,) = outcome.refusals
    assert refusal.slot == "engine.enable_prefix_caching"
    assert "refit.clear_cache: true" in refusal.remedy
    assert "engine.enable_prefix_caching: false" in refusal.remedy
    assert "--disable prefix-cache-after-update" in refusal.switch


def test_prefix_caching_that_is_off_is_what_it_wants(plan_for):
    outcome = plan_for(QWEN3, {**KEPT, "engine": {"enable_prefix_caching": False}})

    assert outcome.adjustments["engine.enable_prefix_caching"].status == "already_set"
    assert outcome.refusals == []


@pytest.mark.parametrize("refit", [{}, {"clear_cache": True}, {"clear_cache": None}], ids=["open", "cleared", "null"])
def test_a_refit_that_clears_the_cache_leaves_prefix_caching_to_the_user(plan_for, refit):
    outcome = plan_for(QWEN3, {"refit": refit, "engine": {"enable_prefix_caching": True}})

    assert outcome.state == "not_matched"
    assert outcome.plan.value("refit.clear_cache") is True
    assert outcome.plan.value("engine.enable_prefix_caching") is True


@pytest.mark.parametrize("purpose", ["eval", "serve"])
def test_runs_without_refits_are_left_alone(plan_for, purpose):
    outcome = plan_for(QWEN3, {**KEPT, "purpose": purpose})

    assert outcome.state == "not_matched"


@pytest.mark.parametrize("switch", ["prefix-cache-after-update", "prefix_cache"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(QWEN3, {**KEPT, "engine": {"enable_prefix_caching": True}}, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.refusals == ()
