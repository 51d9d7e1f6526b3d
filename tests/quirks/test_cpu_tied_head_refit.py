"""A tied head on vLLM's CPU platform is packed anew after a refit."""

from __future__ import annotations

import pytest

CPU = "platform==cpu"
TEXT = {"text_config": {"tie_word_embeddings": True}}


@pytest.mark.parametrize(
    ("model", "patched"),
    [
        ({"model_type": "llama", "tie_word_embeddings": True}, True),
        ({"model_type": "llama", "tie_word_embeddings": False}, False),
        ("gemma3_text", True),  # left to the class
        ({"model_type": "qwen2_vl", **TEXT}, True),
        ({"model_type": "qwen2_vl", "tie_word_embeddings": False, **TEXT}, True),  # in its text model alone
    ],
    ids=str,
)
def test_a_model_that_may_be_tied_is_patched(plan_for, model, patched):
    outcome = plan_for(model, assume=[CPU])

    assert outcome.patched == ["finalize_layerwise_processing"] * patched
    assert outcome.refusals == []


@pytest.mark.parametrize(("version", "state"), [("0.15.1", "dormant"), ("0.16.0", "active")])
def test_it_begins_with_layerwise_reload(plan_for, version, state):
    assert plan_for("gemma3_text", assume=[CPU, f"vllm=={version}"]).state == state
