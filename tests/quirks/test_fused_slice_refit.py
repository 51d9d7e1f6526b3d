"""What a model copies into slices of its parameters goes through their weight loaders while a reload is open."""

from __future__ import annotations

import pytest

LITE = {"model_type": "longcat_flash", "ngram_vocab_size_ratio": 4}


@pytest.mark.parametrize(
    ("model", "patched"),
    [
        ("step3_text", ["Step3TextModel.load_weights"]),
        ("step3_vl", ["Step3TextModel.load_weights"]),
        ("step3p5", ["Step3p5Model.load_weights"]),
        (LITE, ["FlashNgramModel.load_weights"]),
        ("longcat_flash", []),
    ],
    ids=str,
)
def test_each_model_is_patched_in_its_own_file(plan_for, model, patched):
    assert plan_for(model, assume=["vllm==0.32.0"]).patched == patched
