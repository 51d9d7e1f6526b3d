"""Attention sinks are loaded through their weight loader, or come from the checkpoint."""

from __future__ import annotations

import pytest

LOAD_FORMAT = "engine.load_format"


@pytest.mark.parametrize(
    ("model", "owner"), [("gpt_oss", "GptOssModel"), ("mimo_v2", "MiMoV2Model"), ("mimo_v2_flash", "MiMoV2Model")]
)
def test_a_model_in_one_file_is_patched_until_the_release_that_loads_them_itself(plan_for, model, owner):
    assert plan_for(model, assume=["vllm==0.32.0"]).patched == [f"{owner}.load_weights"]
    assert plan_for(model, assume=["vllm==0.33.0"]).state == "dormant"


@pytest.mark.parametrize("model", ["deepseek_v4", "hy_v4"])
def test_a_model_with_a_file_for_each_kind_of_gpu_loads_its_checkpoint_and_says_what_that_means(plan_for, model):
    outcome = plan_for(model, assume=["vllm==0.32.0"])

    assert (outcome.patched, outcome.changes) == ([], {LOAD_FORMAT: "auto"})
    assert any("refits do not reach this model's attention sinks" in warning for warning in outcome.warnings)


def test_dummy_weights_that_were_typed_are_refused_where_no_refit_fills_the_sinks(plan_for):
    (refusal,) = plan_for("deepseek_v4", {LOAD_FORMAT: "dummy"}, assume=["vllm==0.32.0"]).refusals

    assert refusal.slot == LOAD_FORMAT
