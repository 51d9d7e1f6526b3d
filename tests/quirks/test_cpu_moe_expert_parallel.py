"""MoE models on vLLM's CPU platform need patches for data and expert parallelism."""

from __future__ import annotations

import pytest

from quirks_core import Patch, fingerprints

MOE = {"model_type": "qwen3_moe", "num_experts": 8}
CPU = ["platform==cpu"]
DP = {"data_parallel_size": 2}
TP = {"tensor_parallel_size": 2}
EP = {"enable_expert_parallel": True}
COMMUNICATION = ["all_gatherv", "reduce_scatterv"]


def patched(outcome) -> list[str]:
    """The names of the attributes that the quirk patches."""
    return sorted(patch.target.rpartition(".")[2] for patch in outcome.plan.patches if patch.quirk.id == outcome.quirk)


@pytest.mark.parametrize(
    ("engine", "names", "eager"),
    [
        (DP, COMMUNICATION, True),
        ({**DP, **EP}, ["all_gatherv", "apply", "reduce_scatterv"], True),
        ({**TP, **EP}, ["apply"], None),
        ({**DP, **TP, **EP}, ["all_gatherv", "apply", "reduce_scatterv"], True),
    ],
    ids=["dp", "dp and ep", "tp and ep", "all"],
)
def test_each_kind_of_parallelism_gets_the_patches_that_it_needs(plan_for, engine, names, eager):
    outcome = plan_for(MOE, {"engine": engine}, assume=CPU)

    assert patched(outcome) == names
    assert outcome.plan.value("engine.enforce_eager") is eager
    assert outcome.refusals == []


@pytest.mark.parametrize(
    ("config", "engine", "platform"),
    [
        (MOE, {}, "cpu"),
        (MOE, TP, "cpu"),
        (MOE, EP, "cpu"),
        ({"model_type": "qwen3"}, DP, "cpu"),
        (MOE, {**DP, **EP}, "cuda"),
    ],
    ids=["one rank", "tensor parallelism alone", "experts on one rank", "dense model", "another platform"],
)
def test_combinations_that_work_are_left_alone(plan_for, config, engine, platform):
    outcome = plan_for(config, {"engine": engine}, assume=[f"platform=={platform}"])

    assert outcome.state == "not_matched"
    assert patched(outcome) == []


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts", "n_routed_experts"])
def test_a_moe_model_is_known_by_its_experts_also_in_a_nested_configuration(plan_for, key):
    outcome = plan_for({"model_type": "some_moe", "text_config": {key: 8}}, {"engine": DP}, assume=CPU)

    assert patched(outcome) == COMMUNICATION


def test_compilation_that_the_user_insists_on_is_refused_under_data_parallelism(plan_for):
    outcome = plan_for(MOE, {"engine": {**DP, "enforce_eager": False}}, assume=CPU)

    (refusal,) = outcome.refusals
    assert refusal.slot == "engine.enforce_eager"
    assert "data-dependent guard" in refusal.reason
    assert "--disable cpu-moe-expert-parallel" in refusal.switch


def test_the_patches_fit_the_installed_engine(registry, quirk_id):
    patches = [item for item in registry.find(quirk_id).quirk.adjustments if isinstance(item, Patch)]

    assert patches
    assert all(fingerprints.is_expected(patch.target, patch.expects) for patch in patches)


def test_an_assumed_engine_s_source_is_not_checked_and_the_plan_says_so(plan_for):
    outcome = plan_for(MOE, {"engine": DP}, assume=[*CPU, "vllm==0.30.0"])

    assert patched(outcome) == COMMUNICATION
    assert all("is not checked" in warning for warning in outcome.warnings)
    assert len(outcome.warnings) == 2


def test_the_plan_names_the_patch_and_carries_no_code(plan_for):
    outcome = plan_for(MOE, {"engine": DP}, assume=CPU)

    patch = outcome.plan.patches[0]
    assert patch.entry_point == "cpu-moe-expert-parallel"
    assert patch.source == "quirks_plugins.moe_backend.cpu_expert_parallel_patches:all_gatherv"
    assert "def " not in outcome.plan.orders.model_dump_json()


@pytest.mark.parametrize("switch", ["cpu-moe-expert-parallel", "moe_backend"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(MOE, {"engine": DP}, assume=CPU, disable=[switch])

    assert outcome.state == "disabled"
    assert patched(outcome) == []
