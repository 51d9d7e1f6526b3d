"""MoE models on vLLM's CPU platform need patches for data and expert parallelism."""

from __future__ import annotations

import pytest

from quirks_plugins.runs import QWEN3_MOE, parallel

CPU = ["platform==cpu"]
DP = parallel(dp=2)


def names(outcome):
    """The methods that are patched."""
    return [name.rpartition(".")[2] for name in outcome.patched]


@pytest.mark.parametrize(
    ("settings", "methods", "eager"),
    [
        (DP, ["all_gatherv", "reduce_scatterv"], True),
        (parallel(dp=2, flag=True), ["all_gatherv", "reduce_scatterv", "apply"], True),
        (parallel(tp=2, flag=True), ["apply"], None),
        (parallel(dp=2, tp=2, flag=True), ["all_gatherv", "reduce_scatterv", "apply"], True),
    ],
    ids=["dp", "dp and ep", "tp and ep", "all"],
)
def test_each_kind_of_parallelism_gets_the_patches_that_it_needs(plan_for, settings, methods, eager):
    outcome = plan_for(QWEN3_MOE, settings, assume=CPU)

    assert sorted(names(outcome)) == sorted(methods)
    assert (outcome.plan.value("engine.enforce_eager"), outcome.refusals) == (eager, [])


@pytest.mark.parametrize("settings", [{}, parallel(tp=2), parallel(flag=True)], ids=str)
def test_combinations_that_work_are_left_alone(plan_for, settings):
    assert plan_for(QWEN3_MOE, settings, assume=CPU).state == "not_matched"


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts", "n_routed_experts"])
def test_a_moe_model_is_known_by_its_experts_also_in_a_nested_configuration(plan_for, key):
    assert plan_for({"model_type": "some_moe", "text_config": {key: 8}}, DP, assume=CPU).state == "active"


def test_compilation_that_the_user_insists_on_is_refused_under_data_parallelism(plan_for):
    (refusal,) = plan_for(QWEN3_MOE, {**DP, "engine.enforce_eager": False}, assume=CPU).refusals

    assert refusal.slot == "engine.enforce_eager"
    assert "data-dependent guard" in refusal.reason


def test_an_assumed_engines_source_is_not_checked_and_the_plan_says_so(plan_for):
    outcome = plan_for(QWEN3_MOE, DP, assume=[*CPU, "vllm==0.30.0"])

    assert len(outcome.patched) == 2
    assert ["is not checked" in warning for warning in outcome.warnings] == [True, True]


def test_the_plan_names_the_patch_and_carries_no_code(plan_for):
    plan = plan_for(QWEN3_MOE, DP, assume=CPU).plan

    assert plan.patches[0].entry_point == "cpu-moe-expert-parallel"
    assert plan.patches[0].source == "quirks_plugins.moe_backend.cpu_expert_parallel_patches:all_gatherv"
    assert "def " not in plan.for_processes.model_dump_json()
