"""Every engine of a group samples from a seed of its own."""

from __future__ import annotations

import pytest

from quirks_plugins.runs import QWEN3_MOE, parallel

SLOT = "parallel.distinct_seeds"


@pytest.mark.parametrize("purpose", ["rollout", "eval", "serve"])
@pytest.mark.parametrize("strategy", [None, "independent", "actors"])
def test_engines_of_a_group_get_distinct_seeds(plan_for, strategy, purpose):
    assert plan_for(QWEN3_MOE, {**parallel(dp=2, strategy=strategy), "purpose": purpose}).changes == {SLOT: True}


@pytest.mark.parametrize("settings", [{}, parallel(dp=1), parallel(dp=2, strategy="engine")], ids=str)
def test_one_engine_has_no_other_to_differ_from(plan_for, settings):
    assert plan_for("qwen3", settings).state == "not_matched"


def test_who_wants_equal_replicas_gets_them(plan_for):
    outcome = plan_for("qwen3", {**parallel(dp=2), SLOT: False})

    assert (outcome.statuses, outcome.plan.value(SLOT)) == ({SLOT: "kept_user"}, False)
