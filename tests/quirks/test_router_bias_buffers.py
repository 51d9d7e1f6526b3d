"""A refit of parameters leaves out the router's bias, which is a buffer in transformers."""

from __future__ import annotations

import re

import pytest

from quirks_core import sources
from quirks_plugins.weight_sync.router_bias_buffers import QUIRK

GLM = {"model_type": "glm4_moe", "n_routed_experts": 4}
DUMMY = {"engine": {"load_format": "dummy"}}
PARAMETERS = {"refit": {"scope": "parameters"}}


@pytest.mark.parametrize("values", [{}, DUMMY, {"engine": {"load_format": "auto"}}], ids=["open", "dummy", "auto"])
def test_a_rollout_sends_the_state_dict_whatever_the_engine_started_from(plan_for, values):
    outcome = plan_for(GLM, values)

    assert outcome.changes == {"refit.scope": "state_dict"}
    assert outcome.refusals == []
    assert outcome.warnings == []


def test_a_user_who_insists_on_parameters_gets_the_checkpoint_s_bias_and_is_told_what_that_means(plan_for):
    outcome = plan_for(GLM, PARAMETERS)

    assert outcome.changes == {"engine.load_format": "auto"}
    assert outcome.plan.value("refit.scope") == "parameters"
    assert outcome.refusals == []
    assert any("right as long as the trainer does not balance it" in warning for warning in outcome.warnings)


def test_dummy_weights_and_parameters_both_typed_are_refused_with_both_cures(plan_for):
    outcome = plan_for(GLM, {**DUMMY, **PARAMETERS})

    (refusal,) = outcome.refusals
    assert refusal.slot == "refit.scope"
    assert "refit.scope=state_dict" in refusal.remedy
    assert "engine.load_format=auto" in refusal.remedy
    assert "--disable router-bias-buffers" in refusal.switch


@pytest.mark.parametrize(
    ("config", "values"),
    [
        (GLM, {"refit": {"scope": "state_dict"}}),
        (GLM, {"purpose": "eval"}),
        (GLM, {"purpose": "serve"}),
        ({"model_type": "qwen3_moe", "num_experts": 8}, {}),
        ({"model_type": "ernie4_5_moe", "moe_num_experts": 8}, {}),
    ],
    ids=["state dict sent", "eval", "serve", "no such bias", "a bias that is a parameter"],
)
def test_runs_that_lose_no_bias_are_left_alone(plan_for, config, values):
    outcome = plan_for(config, values)

    assert outcome.state == "not_matched"
    assert outcome.adjustments == {}


@pytest.mark.parametrize("model_type", sorted(QUIRK.model_types or ()))
def test_transformers_keeps_the_bias_of_every_listed_model_in_a_buffer(model_type):
    source = sources.module_source(f"transformers.models.{model_type}.modeling_{model_type}")

    assert source is not None
    assert re.search(r"self\.(e_score_correction_bias|expert_bias) = nn\.Buffer\(", source)


@pytest.mark.parametrize("switch", ["router-bias-buffers", "weight_sync"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(GLM, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.value("refit.scope") == "parameters"
