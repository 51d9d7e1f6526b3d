"""Requests that outlive a weight update are computed anew, unless the user says otherwise."""

from __future__ import annotations

import pytest

QWEN3 = {"model_type": "qwen3"}


@pytest.mark.parametrize("refit", [{}, {"clear_cache": None}], ids=["open", "null"])
def test_a_rollout_that_leaves_it_open_drops_the_cache(plan_for, refit):
    outcome = plan_for(QWEN3, {"refit": refit})

    assert outcome.changes == {"refit.clear_cache": True}
    assert outcome.adjustments["refit.clear_cache"].strength == "default"
    assert outcome.warnings == []


def test_an_explicit_false_stays_and_is_told_what_it_means(plan_for):
    outcome = plan_for(QWEN3, {"refit": {"clear_cache": False}})

    assert outcome.adjustments["refit.clear_cache"].status == "kept_user"
    assert outcome.plan.value("refit.clear_cache") is False
    (warning,) = outcome.warnings
    assert "keys and values of the old weights" in warning


def test_an_explicit_true_needs_no_warning(plan_for):
    outcome = plan_for(QWEN3, {"refit": {"clear_cache": True}})

    assert outcome.plan.value("refit.clear_cache") is True
    assert outcome.warnings == []


@pytest.mark.parametrize("purpose", ["eval", "serve"])
def test_runs_without_refits_are_left_alone(plan_for, purpose):
    outcome = plan_for(QWEN3, {"purpose": purpose})

    assert outcome.state == "not_matched"
    assert outcome.plan.value("refit.clear_cache") is None


@pytest.mark.parametrize("switch", ["in-flight-update-cache", "kv_cache"])
def test_switched_off_by_id_or_by_flag_the_cache_is_left_open_and_kept(plan_for, switch):
    outcome = plan_for(QWEN3, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.value("refit.clear_cache") is None
