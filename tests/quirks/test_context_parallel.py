"""Context parallelism with FSDP2 is refused where it cannot work, and nowhere else."""

from __future__ import annotations

import pytest

CP = {"train.context_parallel_size": 2}
PACKING = {"train.sequence_packing": True}
SEQUENCE = {"train.sequence_parallel": True, "train.tensor_parallel_size": 2}
VISION = {"vision_config": {"depth": 2}}


@pytest.mark.parametrize(
    ("model", "train", "refused"),
    [
        ("qwen3", CP, []),
        ("gemma2", CP, []),
        ("gemma3", CP, ["cp-gemma3"]),
        ("gemma3_text", CP, ["cp-gemma3"]),
        ({"model_type": "gemma3_text", "vision_config": None}, CP, ["cp-gemma3"]),  # a text-only checkpoint of such a family
        ({"model_type": "gemma3", **VISION}, CP, ["cp-gemma3", "cp-vlm"]),  # both reasons at once
        ({"model_type": "qwen2_5_vl", **VISION}, CP, ["cp-vlm"]),
        ({"model_type": "some_vlm", "audio_config": {"depth": 2}}, CP, ["cp-vlm"]),
        ("qwen3", PACKING, []),
        ("qwen3", CP | PACKING, ["cp-sequence-packing"]),
        ("qwen3", SEQUENCE, []),
        ("qwen3", CP | SEQUENCE, ["cp-sequence-parallel"]),
        ("qwen3", CP | SEQUENCE | {"train.tensor_parallel_size": 1}, []),
        ("qwen3", CP | SEQUENCE | {"train.sequence_parallel": False}, []),
    ],
    ids=str,
)
def test_every_reason_is_named_at_once_and_none_holds_without_context_parallelism_or_on_megatron(
    plan_for, model, train, refused
):
    assert plan_for(model, train).refused_by == set(refused)
    assert plan_for(model, train | {"train.context_parallel_size": 1}).refused_by == set()
    assert plan_for(model, train | {"train.backend": "megatron"}).refused_by == set()
