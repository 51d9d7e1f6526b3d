"""A tied head on vLLM's CPU platform is packed anew after a refit."""

from __future__ import annotations

import pytest

from quirks_core import Patch, fingerprints

TIED = {"model_type": "llama", "tie_word_embeddings": True}
CPU = ["platform==cpu"]


def patched(outcome) -> list[str]:
    """The names of the attributes that the quirk patches."""
    return [patch.target.rpartition(":")[2] for patch in outcome.plan.patches if patch.quirk.id == outcome.quirk]


@pytest.mark.parametrize(
    "config",
    [
        TIED,
        {"model_type": "gemma3_text"},
        {"model_type": "qwen2_vl", "text_config": {"tie_word_embeddings": True}},
        {"model_type": "qwen2_vl", "tie_word_embeddings": False, "text_config": {"tie_word_embeddings": True}},
    ],
    ids=["tied", "left to the class", "tied in its text model", "tied in its text model alone"],
)
def test_a_model_that_may_be_tied_is_patched(plan_for, config):
    outcome = plan_for(config, assume=CPU)

    assert patched(outcome) == ["finalize_layerwise_processing"]
    assert outcome.refusals == []


@pytest.mark.parametrize(
    ("config", "values", "platform"),
    [
        ({**TIED, "tie_word_embeddings": False}, {}, "cpu"),
        (TIED, {"purpose": "eval"}, "cpu"),
        (TIED, {"purpose": "serve"}, "cpu"),
        (TIED, {}, "cuda"),
    ],
    ids=["untied", "eval", "serve", "another platform"],
)
def test_runs_without_a_packed_tied_head_to_refit_are_left_alone(plan_for, config, values, platform):
    outcome = plan_for(config, values, assume=[f"platform=={platform}"])

    assert outcome.state == "not_matched"
    assert patched(outcome) == []


@pytest.mark.parametrize(("version", "state"), [("0.15.1", "dormant"), ("0.16.0", "active")])
def test_it_begins_with_layerwise_reload(plan_for, version, state):
    outcome = plan_for(TIED, assume=[*CPU, f"vllm=={version}"])

    assert outcome.state == state


def test_the_patch_fits_the_installed_engine(registry, quirk_id):
    (patch,) = registry.find(quirk_id).quirk.adjustments

    assert isinstance(patch, Patch)
    assert fingerprints.is_expected(patch.target, patch.expects)


@pytest.mark.parametrize("switch", ["cpu-tied-head-refit", "weight_sync"])
def test_it_can_be_switched_off_by_id_and_by_flag(plan_for, switch):
    outcome = plan_for(TIED, assume=CPU, disable=[switch])

    assert outcome.state == "disabled"
    assert patched(outcome) == []
