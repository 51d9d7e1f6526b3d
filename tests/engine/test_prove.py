"""``quirks prove`` on the installed engine: one quirk that it needs, and one that it does not need any more."""

from __future__ import annotations

import json
import subprocess
import sys


def test_a_live_quirk_is_needed_and_a_fixed_one_is_not(tmp_path):
    command = [sys.executable, "-m", "quirks_core.cli", "prove", "ep-dense", "gemma-normalizer-dummy-load"]

    done = subprocess.run(
        [*command, "--json", "--output", tmp_path / "report.json"],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )

    assert done.returncode == 1, done.stderr  # a quirk that is not needed is a finding
    report = json.loads(done.stdout)
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")) == report
    live, fixed = report["proofs"]
    assert (live["conclusion"], fixed["conclusion"]) == ("NEEDED", "NOT NEEDED")
    (pair,) = (finding for finding in live["findings"] if finding["kind"] == "paired run")
    assert pair["with_quirk"]["states"] == ["active"]
    assert pair["without_quirk"]["states"] == ["disabled"]
    assert pair["with_quirk"]["outcome"]["passed"]
    assert "the engine died while it started" in pair["without_quirk"]["outcome"]["got"]
    assert {finding["kind"]: finding["conclusion"] for finding in fixed["findings"]} == {
        "paired run": "NOT NEEDED",
        "static probe": "NOT NEEDED",
    }
