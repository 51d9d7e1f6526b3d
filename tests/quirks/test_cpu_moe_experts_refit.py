"""The experts of a MoE model on vLLM's CPU platform are packed anew in a refit."""

from __future__ import annotations

import pytest

from quirks_core import Patch, fingerprints

MOE = {"model_type": "qwen3_moe", "num_experts": 8}
CPU = ["platform==cpu"]


def patched(outcome) -> list[str]:
    """The names of the attributes that the quirk patches."""
    return [patch.target.rpartition(":")[2] for patch in outcome.plan.patches if patch.quirk.id == outcome.quirk]


def test_a_rollout_of_a_moe_model_is_patched(plan_for):
    outcome = plan_for(MOE, assume=CPU)

    assert patched(outcome) == ["UnquantizedFusedMoEMethod._setup_kernel"]
    assert outcome.refusals == []


def test_it_goes_along_with_expert_parallelism(plan_for):
    engine = {"data_parallel_size": 2, "enable_expert_parallel": True}

    outcome = plan_for(MOE, {"engine": engine}, assume=CPU)

    assert patched(outcome) == ["UnquantizedFusedMoEMethod._setup_kernel"]
    assert {patch.quirk.id for patch in outcome.plan.patches} >= {"cpu-moe-expert-parallel", "cpu-moe-experts-refit"}
    assert outcome.plan.refusals == ()


@pytest.mark.parametrize(
    ("config", "values", "platform"),
    [
        ({"model_type": "qwen3"}, {}, "cpu"),
        (MOE, {"purpose": "eval"}, "cpu"),
        (MOE, {"purpose": "serve"}, "cpu"),
        (MOE, {}, "cuda"),
    ],
    ids=["dense model", "eval", "serve", "another platform"],
)
def test_runs_without_packed_experts_to_refit_are_left_alone(plan_for, config, values, platform):
    outcome = plan_for(config, values, assume=[f"platform=={platform}"])

    assert outcome.state == "not_matched"
    assert patched(outcome) == []


@pytest.mark.parametrize(("version", "state"), [("0.27.1", "dormant"), ("0.28.0", "active")])
def test_it_begins_with_the_release_that_packs_experts_once(plan_for, version, state):
    outcome = plan_for(MOE, assume=[*CPU, f"vllm=={version}"])

    assert outcome.state == state


def test_the_patch_fits_the_installed_engine(registry, quirk_id):
    (patch,) = registry.find(quirk_id).quirk.adjustments

    assert isinstance(patch, Patch)
    assert fingerprints.is_expected(patch.target, patch.expects)


@pytest.mark.parametrize("switch", ["cpu-moe-experts-refit", "weight_sync"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(MOE, assume=CPU, disable=[switch])

    assert outcome.state == "disabled"
    assert patched(outcome) == []
