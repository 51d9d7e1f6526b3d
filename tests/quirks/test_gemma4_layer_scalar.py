"""A refit of parameters leaves Gemma-4's ``layer_scalar`` buffers at what dummy weights made of them."""

from __future__ import annotations

import pytest

SCOPE, LOAD_FORMAT = "refit.scope", "engine.load_format"


@pytest.mark.parametrize("model_type", ["gemma4", "gemma4_text", "gemma4_unified"])
@pytest.mark.parametrize("typed", [{}, {LOAD_FORMAT: "dummy"}], ids=["open", "dummy"])
def test_a_rollout_from_dummy_weights_sends_the_state_dict(plan_for, model_type, typed):
    assert plan_for(model_type, typed).changes == {SCOPE: "state_dict"}


def test_a_user_who_insists_on_parameters_gets_the_weights_of_the_checkpoint(plan_for):
    outcome = plan_for("gemma4", {SCOPE: "parameters"})

    assert outcome.changes == {LOAD_FORMAT: "auto"}
    assert (outcome.plan.value(SCOPE), outcome.refusals) == ("parameters", [])


def test_dummy_weights_and_parameters_both_typed_are_refused_with_both_cures(plan_for):
    (refusal,) = plan_for("gemma4", {LOAD_FORMAT: "dummy", SCOPE: "parameters"}).refusals

    assert refusal.slot == SCOPE
    assert "refit.scope=state_dict" in refusal.remedy
    assert "engine.load_format=auto" in refusal.remedy


@pytest.mark.parametrize(
    "settings", [{LOAD_FORMAT: "auto"}, {SCOPE: "state_dict"}, {"purpose": "eval"}, {"purpose": "serve"}], ids=str
)
def test_a_run_that_is_safe_already_is_left_alone(plan_for, settings):
    assert plan_for("gemma4", settings).state == "not_matched"
