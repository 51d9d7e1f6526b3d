"""What a refit leaves out of a layer keeps its old values."""

from __future__ import annotations

import pytest

QUANTISED = {"model_type": "qwen3", "quantization_config": {"quant_method": "fp8"}}


@pytest.mark.parametrize(("version", "state"), [("0.15.1", "dormant"), ("0.26.0", "active"), ("0.33.0", "active")])
def test_our_worker_which_refuses_parts_of_layers_has_it_for_quantised_models(plan_for, version, state):
    assert plan_for(QUANTISED, assume=[f"vllm=={version}"]).state == state
    assert plan_for("qwen3", assume=[f"vllm=={version}"]).patched == []


def test_a_server_is_not_patched(plan_for):
    assert plan_for(QUANTISED, {"purpose": "serve"}).patched == []
