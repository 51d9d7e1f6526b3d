"""A head's bias that first comes with a refit is kept."""

from __future__ import annotations

import pytest

PATCHED = ["CausalMixin.load_weights"]


@pytest.mark.parametrize(
    ("model", "settings", "patched"),
    [
        ("phi", {}, PATCHED),
        ("phi3", {}, []),
        ("phimoe", {"engine.model_impl": "transformers"}, PATCHED),
        ("phimoe", {"engine.model_impl": "vllm"}, []),
        ("phi", {"purpose": "eval"}, []),
    ],
    ids=str,
)
def test_it_is_for_models_that_run_on_the_transformers_backend(plan_for, model, settings, patched):
    assert plan_for(model, settings, assume=["vllm==0.32.0"]).patched == patched
