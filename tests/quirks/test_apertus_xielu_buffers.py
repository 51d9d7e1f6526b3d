"""A refit of parameters destroys the constants of Apertus' activation."""

from __future__ import annotations

import pytest

SCOPE = "refit.scope"


@pytest.mark.parametrize("typed", [{}, {"engine.load_format": "dummy"}, {"engine.load_format": "auto"}], ids=str)
def test_a_rollout_sends_the_state_dict_whatever_the_engine_started_from(plan_for, typed):
    assert plan_for("apertus", typed).changes == {SCOPE: "state_dict"}


def test_explicit_parameters_are_refused_and_an_explicit_state_dict_is_what_it_wants(plan_for):
    (refusal,) = plan_for("apertus", {SCOPE: "parameters"}).refusals

    assert refusal.slot == SCOPE
    assert "set it to 'state_dict'" in refusal.remedy
    assert plan_for("apertus", {SCOPE: "state_dict"}).statuses == {SCOPE: "already_set"}
