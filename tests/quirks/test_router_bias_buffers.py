"""A refit of parameters leaves out the router's bias, which is a buffer in transformers."""

from __future__ import annotations

import re

import pytest

from quirks_core.source.vllm_source import INSTALLED
from quirks_plugins.weight_sync.router_bias_buffers import QUIRK

GLM = {"model_type": "glm4_moe", "n_routed_experts": 4}
SCOPE, LOAD_FORMAT = "refit.scope", "engine.load_format"


@pytest.mark.parametrize("typed", [{}, {LOAD_FORMAT: "dummy"}, {LOAD_FORMAT: "auto"}], ids=str)
def test_a_rollout_sends_the_state_dict_whatever_the_engine_started_from(plan_for, typed):
    outcome = plan_for(GLM, typed)

    assert (outcome.changes, outcome.warnings) == ({SCOPE: "state_dict"}, [])


def test_a_user_who_insists_on_parameters_gets_the_checkpoints_bias_and_is_told_what_that_means(plan_for):
    outcome = plan_for(GLM, {SCOPE: "parameters"})

    assert outcome.changes == {LOAD_FORMAT: "auto"}
    assert (outcome.plan.value(SCOPE), outcome.refusals) == ("parameters", [])
    assert any("right as long as the trainer does not balance it" in warning for warning in outcome.warnings)


def test_dummy_weights_and_parameters_both_typed_are_refused_with_both_cures(plan_for):
    (refusal,) = plan_for(GLM, {LOAD_FORMAT: "dummy", SCOPE: "parameters"}).refusals

    assert refusal.slot == SCOPE
    assert "refit.scope=state_dict" in refusal.remedy
    assert "engine.load_format=auto" in refusal.remedy


@pytest.mark.parametrize("model_type", sorted(QUIRK.model_types or ()))
def test_transformers_keeps_the_bias_of_every_listed_model_in_a_buffer(model_type):
    source = INSTALLED.module_source(f"transformers.models.{model_type}.modeling_{model_type}")

    assert source is not None
    assert re.search(r"self\.(e_score_correction_bias|expert_bias) = nn\.Buffer\(", source)
