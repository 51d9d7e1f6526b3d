"""What a request leaves open comes from vLLM's neutral defaults, not from the checkpoint."""

from __future__ import annotations

import pytest

QWEN3 = {"model_type": "qwen3"}


def test_rollouts_start_from_neutral_defaults(plan_for):
    outcome = plan_for(QWEN3)

    assert outcome.changes == {"engine.generation_config": "vllm"}
    assert outcome.adjustments["engine.generation_config"].strength == "default"


@pytest.mark.parametrize("typed", [{"generation_config": "auto"}, {"vllm_kwargs": {"generation_config": "/a/folder"}}], ids=str)
def test_an_explicit_source_wins_wherever_it_was_typed(plan_for, typed):
    outcome = plan_for(QWEN3, {"engine": typed})

    assert outcome.adjustments["engine.generation_config"].status == "kept_user"
    assert outcome.plan.value("engine.generation_config") in ("auto", "/a/folder")


@pytest.mark.parametrize("purpose", ["eval", "serve"])
def test_runs_without_a_trainer_keep_the_checkpoint_s_defaults(plan_for, purpose):
    outcome = plan_for(QWEN3, {"purpose": purpose})

    assert outcome.state == "not_matched"
    assert outcome.plan.value("engine.generation_config") is None


@pytest.mark.parametrize("switch", ["generation-config-leak", "logprobs"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(QWEN3, disable=[switch])

    assert outcome.state == "disabled"
    assert outcome.plan.value("engine.generation_config") is None
