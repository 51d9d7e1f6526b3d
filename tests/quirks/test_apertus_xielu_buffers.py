"""A refit of parameters destroys the constants of Apertus' activation."""

from __future__ import annotations

import pytest

APERTUS = {"model_type": "apertus"}


@pytest.mark.parametrize("load_format", [None, "dummy", "auto"])
def test_a_rollout_sends_the_state_dict_whatever_the_engine_started_from(plan_for, load_format):
    outcome = plan_for(APERTUS, {"engine": {"load_format": load_format}} if load_format else {})

    assert outcome.changes == {"refit.scope": "state_dict"}


def test_explicit_parameters_are_refused_with_remedy_and_switch(plan_for):
    outcome = plan_for(APERTUS, {"refit": {"scope": "parameters"}})

    (refusal,) = outcome.refusals
    assert refusal.slot == "refit.scope"
    assert "set it to 'state_dict'" in refusal.remedy
    assert "--disable apertus-xielu-buffers" in refusal.switch


def test_an_explicit_state_dict_is_what_it_wants(plan_for):
    outcome = plan_for(APERTUS, {"refit": {"scope": "state_dict"}})

    assert outcome.adjustments["refit.scope"].status == "already_set"
    assert outcome.refusals == []


@pytest.mark.parametrize("purpose", ["eval", "serve"])
def test_runs_without_refits_are_left_alone(plan_for, purpose):
    outcome = plan_for(APERTUS, {"purpose": purpose})

    assert outcome.state == "not_matched"


def test_other_models_refit_their_parameters(plan_for):
    outcome = plan_for({"model_type": "llama"})

    assert outcome.state == "not_matched"
    assert outcome.plan.value("refit.scope") == "parameters"


@pytest.mark.parametrize("switch", ["apertus-xielu-buffers", "weight_sync"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(APERTUS, {"refit": {"scope": "parameters"}}, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.refusals == ()
