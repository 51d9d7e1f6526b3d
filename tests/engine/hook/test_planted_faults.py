"""The cheap part of the table of planted faults: one engine takes updates in three ways that vLLM has."""

from __future__ import annotations

import json
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "planted_faults.py"


def test_faults_are_named_at_once_and_healthy_updates_arrive(programs):
    ended = programs.run(sys.executable, SCRIPT, "--kinds", "dense", "--groups", "vllm", "--updates", "3", "--json")

    assert ended.code == 0, ended.text[-4000:]
    rows = [json.loads(line) for line in ended.text.splitlines() if line.startswith("{")]
    assert {row["way"] for row in rows} == {"raw", "reload", "transfer"}
    assert {row["status"] for row in rows if "fault" in row} == {"missing"}
    assert {row["update"] for row in rows if "fault" in row} == {1, 2}
    assert {row["status"] for row in rows if "healthy" in row} == {"arrived"}
