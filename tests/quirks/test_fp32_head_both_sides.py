"""A float32 head on one side only is worse than on neither."""

from __future__ import annotations

import pytest

QWEN3 = {"model_type": "qwen3"}
NEW = ["vllm==0.32.0"]
SLOTS = {"engine": "engine.head_dtype", "train": "train.head_dtype"}
#: A side, and the other one.
sides = pytest.mark.parametrize(("side", "other"), [("engine", "train"), ("train", "engine")])


@sides
def test_a_float32_head_on_one_side_brings_the_other_one(plan_for, side, other):
    outcome = plan_for(QWEN3, {side: {"head_dtype": "float32"}}, assume=NEW)

    assert outcome.changes == {SLOTS[other]: "float32"}
    assert outcome.adjustments[SLOTS[other]].strength == "require"


@sides
def test_an_explicit_head_in_the_model_s_dtype_beside_it_is_refused_with_the_remedy(plan_for, side, other):
    outcome = plan_for(QWEN3, {side: {"head_dtype": "float32"}, other: {"head_dtype": "model"}}, assume=NEW)

    (refusal,) = outcome.refusals
    assert refusal.slot == SLOTS[other]
    assert f"set {SLOTS[other]}: float32" in refusal.remedy
    assert "one side only" in refusal.reason
    assert "--disable fp32-head-both-sides" in refusal.switch


def test_both_in_float32_is_what_it_wants(plan_for):
    outcome = plan_for(QWEN3, {side: {"head_dtype": "float32"} for side in SLOTS}, assume=NEW)

    assert {item.status for item in outcome.adjustments.values()} == {"already_set"}
    assert outcome.refusals == []


@pytest.mark.parametrize("place", ["hf_overrides", "vllm_kwargs"])
def test_a_head_asked_for_in_vllm_s_own_words_counts_too(plan_for, place):
    typed = {"head_dtype": "float32"}
    values = {"engine": {place: typed if place == "hf_overrides" else {"hf_overrides": typed}}}

    outcome = plan_for(QWEN3, values, assume=NEW)

    assert outcome.changes == {"train.head_dtype": "float32"}


@pytest.mark.parametrize("values", [{}, {"engine": {"head_dtype": "model"}}, {"train": {"head_dtype": "model"}}], ids=str)
def test_heads_in_the_model_s_dtype_are_left_alone(plan_for, values):
    outcome = plan_for(QWEN3, values, assume=NEW)

    assert outcome.state == "not_matched"


@pytest.mark.parametrize(("version", "state"), [("0.25.1", "dormant"), ("0.26.0", "active"), ("0.1.dev1+g123", "unknown")])
def test_it_begins_with_the_first_engine_that_obeys_for_generation(plan_for, version, state):
    outcome = plan_for(QWEN3, {"engine": {"head_dtype": "float32"}}, assume=[f"vllm=={version}"])

    assert outcome.state == state


@pytest.mark.parametrize("purpose", ["eval", "serve"])
def test_runs_without_a_trainer_have_one_side(plan_for, purpose):
    outcome = plan_for(QWEN3, {"purpose": purpose, "engine": {"head_dtype": "float32"}}, assume=NEW)

    assert outcome.state == "not_matched"


@pytest.mark.parametrize("switch", ["fp32-head-both-sides", "lm_head_dtype"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    values = {"engine": {"head_dtype": "float32"}, "train": {"head_dtype": "model"}}

    outcome = plan_for(QWEN3, values, assume=NEW, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.refusals == ()
