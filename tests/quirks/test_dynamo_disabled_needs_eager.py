"""TORCHDYNAMO_DISABLE=1 without eager execution. Both runs on the engine are the quirk's evidence."""

from __future__ import annotations

import pytest

EAGER = "engine.enforce_eager"
VLLM = ["vllm==0.32.0"]
OFF = {"TORCHDYNAMO_DISABLE": "1"}


@pytest.mark.parametrize("purpose", ["rollout", "eval", "serve"])
def test_execution_that_was_left_open_is_eager_where_torch_compiles_nothing(plan_for, purpose):
    without = plan_for("qwen3", {"purpose": purpose}, assume=VLLM)
    found = plan_for("qwen3", {"purpose": purpose}, assume=VLLM, environ=OFF)

    assert (found.state, found.changes) == ("active", {EAGER: True})
    assert without.state == "not_matched"


def test_the_variable_counts_also_where_the_configuration_sets_it_for_the_engine(plan_for):
    assert plan_for("qwen3", {"env": OFF}, assume=VLLM).changes == {EAGER: True}


def test_compilation_that_was_typed_is_refused_with_both_remedies(plan_for):
    (refusal,) = plan_for("qwen3", {EAGER: False}, assume=VLLM, environ=OFF).refusals

    assert refusal.slot == EAGER
    assert "unset TORCHDYNAMO_DISABLE" in refusal.remedy
    assert "engine.enforce_eager: true" in refusal.remedy


def test_eager_execution_that_was_typed_stays(plan_for):
    assert plan_for("qwen3", {EAGER: True}, assume=VLLM, environ=OFF).statuses == {EAGER: "already_set"}


@pytest.mark.parametrize("mode", [0, "none"])
def test_an_engine_that_compiles_nothing_anyway_keeps_its_cuda_graphs(plan_for, mode):
    config = {"engine": {"compilation_config": {"mode": mode, "cudagraph_mode": "FULL_DECODE_ONLY"}}}

    assert plan_for("qwen3", config, assume=VLLM, environ=OFF).state == "not_matched"


def test_another_mode_of_compilation_needs_eager_execution(plan_for):
    config = {"engine": {"compilation_config": {"mode": 3}}}

    assert plan_for("qwen3", config, assume=VLLM, environ=OFF).changes == {EAGER: True}
