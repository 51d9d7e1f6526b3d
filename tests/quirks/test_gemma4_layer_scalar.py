"""A refit of parameters leaves Gemma-4's ``layer_scalar`` buffers at what dummy weights made of them."""

from __future__ import annotations

import pytest

GEMMA4 = {"model_type": "gemma4"}


@pytest.mark.parametrize("model_type", ["gemma4", "gemma4_text", "gemma4_unified"])
def test_a_rollout_from_dummy_weights_sends_the_state_dict(plan_for, model_type):
    outcome = plan_for({"model_type": model_type})

    assert outcome.changes == {"refit.scope": "state_dict"}
    assert outcome.plan.value("engine.load_format") == "dummy"


def test_explicit_dummy_weights_send_the_state_dict_too(plan_for):
    outcome = plan_for(GEMMA4, {"engine": {"load_format": "dummy"}})

    assert outcome.changes == {"refit.scope": "state_dict"}
    assert outcome.refusals == []


def test_a_user_who_insists_on_parameters_gets_the_weights_of_the_checkpoint(plan_for):
    outcome = plan_for(GEMMA4, {"refit": {"scope": "parameters"}})

    assert outcome.changes == {"engine.load_format": "auto"}
    assert outcome.plan.value("refit.scope") == "parameters"
    assert outcome.refusals == []


def test_dummy_weights_and_parameters_both_typed_are_refused_with_both_cures(plan_for):
    outcome = plan_for(GEMMA4, {"engine": {"load_format": "dummy"}, "refit": {"scope": "parameters"}})

    (refusal,) = outcome.refusals
    assert refusal.slot == "refit.scope"
    assert "refit.scope=state_dict" in refusal.remedy
    assert "engine.load_format=auto" in refusal.remedy
    assert "--disable gemma4-layer-scalar" in refusal.switch


@pytest.mark.parametrize(
    "values",
    [{"engine": {"load_format": "auto"}}, {"refit": {"scope": "state_dict"}}, {"purpose": "eval"}, {"purpose": "serve"}],
    ids=["weights loaded", "state dict sent", "eval", "serve"],
)
def test_a_run_that_is_safe_already_is_left_alone(plan_for, values):
    outcome = plan_for(GEMMA4, values)

    assert outcome.state == "not_matched"
    assert outcome.adjustments == {}


def test_other_models_refit_their_parameters(plan_for):
    outcome = plan_for({"model_type": "gemma3_text"})

    assert outcome.state == "not_matched"
    assert outcome.plan.value("refit.scope") == "parameters"


@pytest.mark.parametrize("switch", ["gemma4-layer-scalar", "weight_sync"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(GEMMA4, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.value("refit.scope") == "parameters"
