"""The measured upgrade that docs/upgrade-measured.json records is that of this code and of the installed engine.

A measurement installs another vLLM and starts four engines, so it is run anew only where what it depends on has changed.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

from quirks_core.facts.packages import installed_versions
from worker.lab.kit.evidence import digest_of

_ROOT = Path(__file__).resolve().parents[2]
_FILE = _ROOT / "docs/upgrade-measured.json"
#: What makes a measurement, beside the engines.
_CODE = (*sorted((_ROOT / "worker/lab/compare").glob("*.py")), _ROOT / "worker/lab/cli/migrate.py")
_PACKAGES = ("torch", "transformers", "vllm")
_FROM, _TO = "0.30.0", "0.32.0"


def _depends() -> dict[str, str]:
    installed = installed_versions()
    code = digest_of(ast.parse(file.read_text(encoding="utf-8")) for file in _CODE)
    return {"code": code, **{name: installed.get(name, "") for name in _PACKAGES}}


@pytest.mark.timeout(patience(3600))  # installs a vLLM
def test_the_measured_upgrade_is_run_anew_where_what_it_depends_on_has_changed(checkpoint, tmp_path):
    recorded = json.loads(_FILE.read_text(encoding="utf-8")) if _FILE.exists() else {}
    if recorded.get("depends") == _depends():
        return

    run = ["--from", _FROM, "--to", _TO, "--model", checkpoint("qwen3"), "--set", "engine.load_format=auto"]
    command = [sys.executable, "-m", "quirks_core.cli", "upgrade", *run, "--measure", tmp_path / "measured", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 2, 3), done.stderr[-3000:]
    report = json.loads(done.stdout)
    comparison = report["measured"]["comparison"]
    sides = {name: json.loads((tmp_path / f"measured/{name}.json").read_text(encoding="utf-8")) for name in ("A", "B")}
    found = {
        "depends": _depends(),
        "command": f"quirks upgrade --from {_FROM} --to {_TO} --model ./qwen3 --set engine.load_format=auto --measure measured",
        "exit_code": done.returncode,
        "verdict": report["verdict"],
        "passed": report["measured"]["passed"],
        "reading": comparison["reading"],
        "kinds": [
            {name: kind[name] for name in ("kind", "rows", "identical", "tokens", "equal_tokens", "metrics")}
            for kind in comparison["kinds"]
        ],
        "sides": {
            name: {
                "date": side["date"],
                "vllm": side["versions"]["vllm"],
                "quirks": side["quirks"],
                "receipt": [process["process"] for process in side["receipt"]["processes"]],
            }
            for name, side in sides.items()
        },
    }
    _FILE.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    pytest.fail(f"the measured upgrade was stale, and was run anew; look at {_FILE.name} and commit it")


def test_between_the_two_versions_no_limit_is_crossed_and_all_processes_acknowledged_their_plan():
    found = json.loads(_FILE.read_text(encoding="utf-8"))

    assert (found["verdict"], found["passed"], found["exit_code"]) == ("go", True, 0)
    assert [side["vllm"] for side in found["sides"].values()] == [_FROM, _TO]
    assert all(len(side["receipt"]) == 3 for side in found["sides"].values())
    kinds = {kind["kind"]: kind for kind in found["kinds"]}
    assert kinds["greedy"]["identical"] == kinds["greedy"]["rows"] > 0
    assert kinds["teacher-forced"]["metrics"]["max_abs_delta"] <= 1e-5
