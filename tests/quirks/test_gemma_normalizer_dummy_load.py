"""Dummy weights overwrite Gemma's embedding normalizer on vLLM before 0.9.2."""

from __future__ import annotations

import pytest

GEMMA3 = {"model_type": "gemma3_text"}
DUMMY = {"engine": {"load_format": "dummy"}}
OLD = ["vllm==0.9.1"]


@pytest.mark.parametrize("model_type", ["gemma", "gemma2", "gemma3", "gemma3_text"])
def test_an_affected_engine_reads_the_checkpoint_of_every_gemma_up_to_3(plan_for, model_type):
    outcome = plan_for({"model_type": model_type}, assume=OLD)

    assert outcome.changes == {"engine.load_format": "auto"}
    assert outcome.plan.value("engine.load_format") == "auto"
    assert outcome.plan.refusals == ()


@pytest.mark.parametrize("model_type", ["gemma3n_text", "gemma4_text", "qwen3"])
def test_other_models_keep_their_dummy_weights(plan_for, model_type):
    outcome = plan_for({"model_type": model_type}, assume=OLD)

    assert outcome.state == "not_matched"
    assert outcome.plan.value("engine.load_format") == "dummy"


def test_a_model_that_does_not_say_its_type_is_unknown_and_the_plan_says_so(plan_for):
    outcome = plan_for({}, assume=OLD)

    assert (outcome.state, outcome.changes) == ("unknown", {})
    assert any("model.model_type" in warning for warning in outcome.warnings)


def test_explicit_dummy_weights_are_refused_with_remedy_and_switch(plan_for):
    outcome = plan_for(GEMMA3, DUMMY, assume=OLD)

    (refusal,) = outcome.refusals
    assert refusal.slot == "engine.load_format"
    assert "must be 'auto', but 'dummy' was set explicitly" in refusal.reason
    assert "set it to 'auto'" in refusal.remedy
    assert "--disable gemma-normalizer-dummy-load" in refusal.switch
    assert outcome.adjustments["engine.load_format"].strength == "require"


@pytest.mark.parametrize("load_format", ["auto", "safetensors", "runai_streamer"])
def test_every_explicit_format_that_reads_weights_is_kept(plan_for, load_format):
    outcome = plan_for(GEMMA3, {"engine": {"load_format": load_format}}, assume=OLD)

    assert outcome.refusals == []
    assert outcome.plan.value("engine.load_format") == load_format


@pytest.mark.parametrize("version", ["0.9.2rc1", "0.9.2.dev3", "0.9.1+cpu", "0.8.5.post1"])
def test_every_version_before_the_fix_is_affected_its_pre_releases_too(plan_for, version):
    outcome = plan_for(GEMMA3, assume=[f"vllm=={version}"])

    assert outcome.state == "active"


@pytest.mark.parametrize("version", ["0.9.2", "0.9.2+cpu", "0.32.0"])
def test_a_fixed_engine_leaves_the_quirk_dormant_and_the_reason_names_its_version(plan_for, version):
    outcome = plan_for(GEMMA3, DUMMY, assume=[f"vllm=={version}"])

    assert outcome.state == "dormant"
    assert outcome.verdict.because == f"packages.vllm: wanted < 0.9.2, got {version}"
    assert outcome.plan.value("engine.load_format") == "dummy"
    assert outcome.plan.refusals == ()


def test_an_assumed_source_build_is_unknown_and_says_so(plan_for):
    outcome = plan_for(GEMMA3, assume=["vllm==0.1.dev1+g123"])

    assert outcome.state == "unknown"
    assert outcome.changes == {}
    assert "0.1.dev1+g123" in outcome.warnings[0]


def test_an_installed_source_build_is_settled_by_the_engine_s_own_source(context_for, registry, quirk_id):
    built = context_for(GEMMA3).model_copy(update={"packages": {"vllm": "0.1.dev1+g123"}})

    verdict = next(item for item in registry.resolve(built).verdicts if item.id == quirk_id)

    assert verdict.state == "dormant"
    assert "settled by" in verdict.because


@pytest.mark.parametrize("purpose", ["eval", "serve"])
def test_runs_that_read_the_checkpoint_anyway_are_left_alone(plan_for, purpose):
    outcome = plan_for(GEMMA3, {"purpose": purpose}, assume=OLD)

    assert outcome.adjustments["engine.load_format"].status == "already_set"
    assert outcome.plan.refusals == ()


@pytest.mark.parametrize("switch", ["gemma-normalizer-dummy-load", "load_format"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(GEMMA3, DUMMY, assume=OLD, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.value("engine.load_format") == "dummy"
    assert outcome.plan.refusals == ()
