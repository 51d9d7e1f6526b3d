"""``quirks prove`` on the installed engine: a quirk that it needs. One that it does not need is the kit's matter."""

from __future__ import annotations

import json

from programs import run_python


def test_a_live_quirk_is_needed(tmp_path):
    done = run_python("-m", "quirks_core.cli", "prove", "dp-environment", "--json", "--output", tmp_path / "report.json")

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")) == report
    (proof,) = report["proofs"]
    assert proof["conclusion"] == "HOLDS"  # it is a rule
    (pair,) = (finding for finding in proof["findings"] if finding["kind"] == "paired run")
    assert pair["with_quirk"]["states"] == ["active"]
    assert pair["without_quirk"]["states"] == ["disabled"]
    assert pair["with_quirk"]["outcome"]["passed"]
    assert "the engine died while it started" in pair["without_quirk"]["outcome"]["got"]
