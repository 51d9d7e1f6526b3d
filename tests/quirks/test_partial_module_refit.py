"""What a refit leaves out of a layer keeps its old values."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(("version", "state"), [("0.15.1", "dormant"), ("0.26.0", "active"), ("0.33.0", "active")])
def test_every_rollout_is_patched_since_layerwise_reload_is_there(plan_for, version, state):
    assert plan_for("qwen3", assume=[f"vllm=={version}"]).state == state


def test_a_server_is_not_patched(plan_for):
    assert plan_for("qwen3", {"purpose": "serve"}).patched == []
