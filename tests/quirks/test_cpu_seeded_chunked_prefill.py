"""Seeded requests with prompts that are split over steps, on vLLM's CPU platform."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("purpose", ["rollout", "eval", "serve"])
def test_every_run_on_cpu_is_patched_and_none_elsewhere(plan_for, purpose):
    cpu, cuda = (plan_for("qwen3", {"purpose": purpose}, assume=[f"platform=={name}"]) for name in ("cpu", "cuda"))

    assert [name.rpartition(".")[2] for name in cpu.patched] == ["sample_tokens"]
    assert (cuda.state, cpu.refusals) == ("not_matched", [])
