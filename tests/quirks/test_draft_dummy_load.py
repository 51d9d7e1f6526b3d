"""The draft of a rollout comes from its checkpoint."""

from __future__ import annotations

SLOT = "engine.speculative_config"
DRAFT = {"method": "draft_model", "model": "some/draft", "num_speculative_tokens": 3}


def test_target_and_draft_are_loaded_where_nobody_typed_how(plan_for):
    outcome = plan_for("qwen3", {SLOT: DRAFT})

    assert (outcome.changes, outcome.plan.value(SLOT)) == ({"engine.load_format": "auto"}, DRAFT)


def test_where_dummy_weights_were_typed_the_draft_alone_is_loaded_and_the_rest_of_its_configuration_stays(plan_for):
    outcome = plan_for("qwen3", {SLOT: DRAFT, "engine.load_format": "dummy"})

    assert outcome.plan.value("engine.load_format") == "dummy"
    assert outcome.plan.value(SLOT) == {**DRAFT, "draft_load_config": {"load_format": "auto"}}


def test_a_typed_way_of_loading_the_draft_stays(plan_for):
    typed = {**DRAFT, "draft_load_config": {"load_format": "dummy"}}

    assert plan_for("qwen3", {SLOT: typed, "engine.load_format": "dummy"}).plan.value(SLOT) == typed


def test_without_a_draft_and_where_the_target_is_loaded_it_does_nothing(plan_for):
    loaded = {SLOT: DRAFT, "engine.load_format": "auto"}

    assert [plan_for("qwen3", settings).state for settings in ({}, loaded)] == ["not_matched"] * 2
