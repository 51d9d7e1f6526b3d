"""The cheap part of the table of planted faults: one engine takes updates in three ways that vLLM has, one takes adapters.

Both run under ``MODEL_QUIRKS_LEDGER=stop``: a healthy run that is refused is no healthy row.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "planted_faults.py"


def test_faults_are_named_and_healthy_updates_are_not_refused(programs):
    options = ("--kinds", "dense", "--groups", "vllm", "adapters", "--updates", "3", "--json")

    ended = programs.run(sys.executable, SCRIPT, *options)

    assert ended.code == 0, ended.text[-4000:]
    rows = [json.loads(line) for line in ended.text.splitlines() if line.startswith("{")]
    assert {row["way"] for row in rows} == {"raw", "reload", "transfer", "add_lora"}
    assert {row["status"] for row in rows if "fault" in row} == {"missing"}
    assert {row["update"] for row in rows if "fault" in row} == {1, 2}
    assert {row["status"] for row in rows if "healthy" in row} == {"arrived"}
