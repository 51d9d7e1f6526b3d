"""A float32 head on one side only is worse than on neither."""

from __future__ import annotations

import pytest

ENGINE, TRAIN = "engine.head_dtype", "train.head_dtype"
NEW = ["vllm==0.32.0"]


@pytest.mark.parametrize(("side", "other"), [(ENGINE, TRAIN), (TRAIN, ENGINE)])
def test_a_float32_head_on_one_side_brings_the_other_one_and_a_contrary_one_is_refused(plan_for, side, other):
    (refusal,) = plan_for("qwen3", {side: "float32", other: "model"}, assume=NEW).refusals

    assert plan_for("qwen3", {side: "float32"}, assume=NEW).changes == {other: "float32"}
    assert refusal.slot == other
    assert f"set {other}: float32" in refusal.remedy
    assert "one side only" in refusal.reason


def test_both_in_float32_is_what_it_wants(plan_for):
    outcome = plan_for("qwen3", {ENGINE: "float32", TRAIN: "float32"}, assume=NEW)

    assert outcome.statuses == {ENGINE: "already_set", TRAIN: "already_set"}


@pytest.mark.parametrize(
    "settings",
    [
        {"engine.hf_overrides": {"head_dtype": "float32"}},
        {"engine.vllm_kwargs": {"hf_overrides": {"head_dtype": "float32"}}},
    ],
    ids=str,
)
def test_a_head_asked_for_in_vllms_own_words_counts_too(plan_for, settings):
    assert plan_for("qwen3", settings, assume=NEW).changes == {TRAIN: "float32"}


@pytest.mark.parametrize("settings", [{}, {ENGINE: "model"}, {TRAIN: "model"}], ids=str)
def test_heads_in_the_models_dtype_are_left_alone(plan_for, settings):
    assert plan_for("qwen3", settings, assume=NEW).state == "not_matched"


@pytest.mark.parametrize(("version", "state"), [("0.25.1", "dormant"), ("0.26.0", "active"), ("0.1.dev1+g123", "unknown")])
def test_it_begins_with_the_first_engine_that_obeys_for_generation(plan_for, version, state):
    assert plan_for("qwen3", {ENGINE: "float32"}, assume=[f"vllm=={version}"]).state == state
