"""Requests that outlive a weight update are computed anew, unless the user says otherwise."""

from __future__ import annotations

import pytest

SLOT = "refit.clear_cache"


@pytest.mark.parametrize("typed", [{}, {SLOT: None}], ids=["open", "null"])
def test_a_rollout_that_leaves_it_open_drops_the_cache(plan_for, typed):
    outcome = plan_for("qwen3", typed)

    assert (outcome.changes, outcome.warnings) == ({SLOT: True}, [])


@pytest.mark.parametrize(("typed", "status", "is_told"), [(False, "kept_user", True), (True, "already_set", False)])
def test_an_explicit_value_stays_and_of_a_cache_that_is_kept_is_told_what_it_means(plan_for, typed, status, is_told):
    outcome = plan_for("qwen3", {SLOT: typed})

    assert (outcome.statuses, outcome.plan.value(SLOT)) == ({SLOT: status}, typed)
    assert ["keys and values of the old weights" in warning for warning in outcome.warnings] == [True] * is_told
