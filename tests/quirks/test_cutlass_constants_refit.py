"""A rollout of gpt-oss with CUDA graphs does not run on FlashInfer's CUTLASS experts."""

from __future__ import annotations

import pytest

BACKEND = "engine.moe_backend"
CUDA = ["platform==cuda", "vllm==0.32.0"]


@pytest.mark.parametrize(
    ("typed", "count"),
    [({BACKEND: "flashinfer_cutlass"}, 1), ({BACKEND: "flashinfer_cutlass", "engine.enforce_eager": True}, 0), ({}, 0)],
    ids=str,
)
def test_a_typed_backend_is_refused_and_an_open_one_is_left_to_vllm(plan_for, typed, count):
    outcome = plan_for("gpt_oss", typed, assume=CUDA)

    assert [refusal.slot for refusal in outcome.refusals] == [BACKEND] * count
    assert BACKEND not in outcome.changes
