"""TRL's GRPO with vLLM in colocate mode: an ordinary script, with MODEL_QUIRKS=on and without."""

from __future__ import annotations

import importlib.util
import json

import pytest

from quirks_core.facts.packages import cpu_features

#: In nats, mean over a step's tokens. In bfloat16, which vLLM makes of a float32 checkpoint by itself, it is 0.02 to 0.04.
_TOLERANCE = 1e-4

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs the extra 'integrations' (TRL is not installed)"),
]


def test_with_quirks_the_engine_samples_from_the_policy(train):
    ended = train("with", MODEL_QUIRKS="on")

    assert ended.code == 0, ended.text[-4000:]
    assert [row["step"] for row in ended.steps] == [1, 2, 3]
    assert max(row["sampling/sampling_logp_difference/mean"] for row in ended.steps) <= _TOLERANCE
    assert all(row["grad_norm"] > 0 for row in ended.steps[:2])  # so later steps had other weights to load
    (engine,) = json.loads(ended.receipt.read_text(encoding="utf-8"))["engines"]
    assert engine["changes"]["engine.dtype"] == "float32"
    patched = {effect["slot"].rpartition(":")[2] for process in engine["processes"] for effect in process["effects"]}
    assert "BaseModelLoader.load_model" in patched
    assert "purpose rollout (a sign of a trainer" in ended.text
    assert (
        "read: train.dtype = float32 (VLLMGeneration.model), train.trainable_dtype = float32 (VLLMGeneration.model), "
        in ended.text
    )
    assert "train.autocast = none (accelerate's state), train.head_dtype = model (GRPOTrainer.args)" in ended.text


def test_without_quirks_the_first_weight_update_fails(train):
    ended = train("without")

    packs = "avx512" in (cpu_features() or ())  # what the quirk cpu-load-into-live-model matches on
    assert (ended.code != 0) == packs, ended.text[-4000:]
    assert ("AttributeError: 'Parameter' object has no attribute 'weight_loader'" in ended.text) == packs
    assert "model-quirks: " not in ended.text
    assert not ended.receipt.exists()
