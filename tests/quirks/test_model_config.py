"""What the quirks of the model's configuration make of ``config.json`` and ``engine.hf_overrides`` together."""

from __future__ import annotations

import pytest

OVERRIDES = "engine.hf_overrides"
LENGTH = "engine.max_model_len"
QWEN3 = {"model_type": "qwen3", "rope_theta": 1e6, "max_position_embeddings": 32768}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
WHOLE = YARN | {"rope_theta": 1e6}
THETA = {"rope_type": "default", "rope_theta": 1e6}
BY_LAYER = {"full_attention": THETA, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
GEMMA3 = {"model_type": "gemma3_text", "rope_parameters": BY_LAYER}
DYNAMIC = {"model_type": "internlm2", "max_position_embeddings": 64, "rope_scaling": {"type": "dynamic", "factor": 4.0}}
LONG = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}


def overridden(plan):
    return plan.changes.get(OVERRIDES)


@pytest.mark.parametrize(
    ("model", "typed", "made"),
    [
        (QWEN3, {"rope_parameters": YARN}, {"rope_parameters": WHOLE}),
        ({"model_type": "qwen3", "rope_parameters": THETA}, {"rope_scaling": YARN}, {"rope_scaling": WHOLE}),
        (  # under its old names, and with nothing beside the factor
            QWEN3,
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            {"rope_scaling": WHOLE | {"type": "yarn"}},
        ),
        (
            QWEN3 | {"partial_rotary_factor": 0.5},
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6, "partial_rotary_factor": 0.5}},
        ),
        (QWEN3, {"rope_parameters": {}}, {"rope_parameters": THETA}),
        (
            GEMMA3,
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}}},
            {"rope_parameters": BY_LAYER | {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}},
        ),
        (QWEN3, {"rope_theta": 5e6, "rope_scaling": YARN}, {"rope_theta": 5e6, "rope_scaling": YARN | {"rope_theta": 5e6}}),
        (
            QWEN3 | {"rope_scaling": YARN},
            {"rope_theta": 5e6},
            {"rope_theta": 5e6, "rope_parameters": WHOLE | {"rope_theta": 5e6}},
        ),
        (QWEN3, {"rope_parameters": YARN | {"rope_theta": 3.0}, "rope_theta": 5e6}, None),  # what is typed inside counts
        (QWEN3, {"hidden_size": 64}, None),
        (  # by nested-overrides, as it was typed
            {"model_type": "qwen2_5_vl", "text_config": QWEN3},
            {"rope_scaling": YARN},
            {"rope_scaling": YARN, "text_config": {"rope_scaling": YARN}},
        ),
    ],
)
def test_a_typed_rope_is_completed_as_by_transformers(plan_for, refused_by, model, typed, made):
    plan = plan_for(model, {OVERRIDES: typed} if typed else {})

    assert overridden(plan) == made
    assert refused_by(plan) == set()


@pytest.mark.parametrize("disabled", ["rope-scaling-override-theta", "rope-theta-override"])
def test_either_quirk_brings_a_typed_theta_into_the_mapping(plan_for, disabled):
    plan = plan_for(QWEN3, {OVERRIDES: {"rope_theta": 5e6, "rope_parameters": YARN}}, disable=[disabled])

    assert overridden(plan)["rope_parameters"] == YARN | {"rope_theta": 5e6}


@pytest.mark.parametrize("model", [GEMMA3, {"model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 1e4}])
def test_one_theta_for_several_kinds_of_layer_is_refused(plan_for, refused_by, model):
    assert refused_by(plan_for(model, {OVERRIDES: {"rope_theta": 5e6}})) == {"rope-theta-override"}
    assert refused_by(plan_for(model, {OVERRIDES: {"rope_theta": 5e6, "rope_parameters": BY_LAYER}})) == set()


@pytest.mark.parametrize(
    ("model", "typed", "length", "made"),
    [
        (QWEN3 | {"rope_scaling": YARN}, None, 100_000, 131072),
        (QWEN3, {"rope_parameters": YARN}, None, None),
        (QWEN3, {"rope_parameters": YARN | {"rope_type": "linear"}}, 131072, None),
        (QWEN3 | {"rope_scaling": YARN}, {"rope_scaling": THETA}, 131072, None),  # typed away
        (QWEN3, {"rope_parameters": YARN, "max_position_embeddings": 65536}, 131072, 65536),
    ],
)
def test_yarn_reaches_the_length_that_was_typed(plan_for, model, typed, length, made):
    plan = plan_for(model, ({OVERRIDES: typed} if typed else {}) | ({LENGTH: length} if length else {}))

    assert (overridden(plan) or {}).get("max_position_embeddings") == made


@pytest.mark.parametrize(
    ("model", "settings", "environ", "refused", "length"),
    [
        (DYNAMIC, {LENGTH: 100, OVERRIDES: {"max_position_embeddings": 128}}, {}, set(), None),
        (QWEN3, {LENGTH: 32769}, LONG | {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0"}, set(), None),
        (QWEN3, {LENGTH: 65536, OVERRIDES: {"max_position_embeddings": 65536}}, LONG, set(), None),
        (QWEN3, {LENGTH: 131072, OVERRIDES: {"rope_parameters": YARN}}, LONG, set(), None),
        (QWEN3, {LENGTH: 131073, OVERRIDES: {"rope_parameters": YARN}}, LONG, {"long-length-environment"}, None),
        (QWEN3 | {"rope_scaling": {"type": "linear", "factor": 2.0}}, {LENGTH: 65536}, LONG, set(), None),
    ],
)
def test_no_sequence_is_longer_than_the_rotations_that_there_are(
    plan_for, refused_by, model, settings, environ, refused, length
):
    plan = plan_for(model, settings, environ=environ)

    assert refused_by(plan) == refused
    assert plan.changes.get(LENGTH) == length
