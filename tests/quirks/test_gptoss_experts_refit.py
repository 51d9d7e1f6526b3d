"""The experts of gpt-oss are loaded through their weight loaders while a reload is open."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("version", ["0.26.0", "0.30.0", "0.32.0", "0.33.0"])
def test_a_rollout_of_gpt_oss_is_patched_on_every_supported_version(plan_for, version):
    assert plan_for("gpt_oss", assume=[f"vllm=={version}"]).patched == ["GptOssModel.load_weights"]


def test_a_server_is_not_patched(plan_for):
    assert plan_for("gpt_oss", {"purpose": "serve"}).patched == []
