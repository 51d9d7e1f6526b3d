"""Rollouts with LoRA cache no prefixes, unless the user says so."""

from __future__ import annotations

SLOT = "engine.enable_prefix_caching"
LORA = {"engine.enable_lora": True}


def test_a_rollout_with_lora_caches_no_prefixes_unless_it_was_typed(plan_for):
    assert plan_for("qwen3", LORA).changes == {SLOT: False}
    assert plan_for("qwen3", {**LORA, SLOT: True}).statuses == {SLOT: "kept_user"}


def test_adapters_that_are_served_and_rollouts_without_lora_keep_their_prefixes(plan_for):
    assert [plan_for("qwen3", settings).state for settings in ({**LORA, "purpose": "serve"}, {})] == ["not_matched"] * 2
