"""What a request leaves open comes from vLLM's neutral defaults, not from the checkpoint."""

from __future__ import annotations

import pytest

SLOT = "engine.generation_config"


def test_rollouts_start_from_neutral_defaults(plan_for):
    assert plan_for("qwen3").changes == {SLOT: "vllm"}


@pytest.mark.parametrize(("slot", "value"), [(SLOT, "auto"), ("engine.vllm_kwargs", {"generation_config": "/a/folder"})])
def test_an_explicit_source_wins_wherever_it_was_typed(plan_for, slot, value):
    outcome = plan_for("qwen3", {slot: value})

    assert outcome.statuses == {SLOT: "kept_user"}
    assert outcome.plan.value(SLOT) in ("auto", "/a/folder")
