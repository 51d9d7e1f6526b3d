"""Sleep mode on a platform that has none is refused before an engine starts."""

from __future__ import annotations

import pytest

SLEEP = "engine.enable_sleep_mode"


@pytest.mark.parametrize(("platform", "typed", "count"), [("cpu", True, 1), ("cpu", False, 0), ("cuda", True, 0)])
def test_only_a_cpu_with_sleep_mode_is_refused(plan_for, platform, typed, count):
    refusals = plan_for("qwen3", {SLEEP: typed}, assume=[f"platform=={platform}"]).refusals

    assert len(refusals) == count
    assert all(SLEEP in refusal.remedy for refusal in refusals)
