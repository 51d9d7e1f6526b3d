"""Dummy weights overwrite Gemma's embedding normalizer on vLLM before 0.9.2."""

from __future__ import annotations

import pytest

SLOT = "engine.load_format"
OLD = ["vllm==0.9.1"]


@pytest.mark.parametrize("model_type", ["gemma", "gemma2", "gemma3", "gemma3_text"])
def test_an_affected_engine_reads_the_checkpoint_of_every_gemma_up_to_3(plan_for, model_type):
    assert plan_for(model_type, assume=OLD).changes == {SLOT: "auto"}
    assert plan_for(model_type, {"purpose": "eval"}, assume=OLD).statuses == {SLOT: "already_set"}


@pytest.mark.parametrize("model_type", ["gemma3n_text", "gemma4_text", "qwen3"])
def test_other_models_keep_their_dummy_weights(plan_for, model_type):
    assert plan_for(model_type, assume=OLD).state == "not_matched"


def test_explicit_dummy_weights_are_refused_and_every_format_that_reads_weights_is_kept(plan_for):
    (refusal,) = plan_for("gemma3_text", {SLOT: "dummy"}, assume=OLD).refusals

    assert "must be 'auto', but 'dummy' was set explicitly" in refusal.reason
    assert "set it to 'auto'" in refusal.remedy
    for load_format in ("auto", "safetensors", "runai_streamer"):
        outcome = plan_for("gemma3_text", {SLOT: load_format}, assume=OLD)
        assert (outcome.refusals, outcome.plan.value(SLOT)) == ([], load_format)


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("0.8.5.post1", "active"),
        ("0.9.1+cpu", "active"),
        ("0.9.2.dev3", "active"),
        ("0.9.2rc1", "active"),
        ("0.9.2", "dormant"),
        ("0.9.2+cpu", "dormant"),
        ("0.1.dev1+g123", "unknown"),
    ],
)
def test_every_version_before_the_fix_is_affected_its_pre_releases_too(plan_for, version, state):
    outcome = plan_for("gemma3_text", {SLOT: "dummy"}, assume=[f"vllm=={version}"])

    assert outcome.state == state
    assert bool(outcome.refusals) is (state == "active")
    assert version in outcome.verdict.because or state == "active"


def test_an_installed_source_build_is_settled_by_the_engines_own_source(plan_for, registry):
    outcome = plan_for("gemma3_text")
    built = outcome.plan.context.model_copy(update={"packages": {"vllm": "0.1.dev1+g123"}})

    verdict = next(item for item in registry.resolve(built).verdicts if item.id == outcome.quirk)

    assert verdict.state == "dormant"
    assert "settled by" in verdict.because
