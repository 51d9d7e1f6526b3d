"""The scripts behind ``make generate`` and ``make demo``."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from patience import HUNG_S

_SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.usefixtures("worker_in_core", "forked")
def test_generate_prints_plan_texts_and_receipt(checkpoint, capfd):
    settings = ["engine.enforce_eager=true", "engine.dtype=float32", "engine.max_model_len=128", "sampling.max_new_tokens=8"]
    options = [word for setting in settings for word in ("--set", setting)]

    script = runpy.run_path(str(_SCRIPTS / "generate.py"))

    script["main"](["--model", str(checkpoint("qwen3")), *options, "Hello", "one two"])

    printed = capfd.readouterr().out
    (plan,) = re.findall(r"purpose eval, plan (\w+)$", printed, re.MULTILINE)
    assert len(re.findall(r"^(?:Hello|one two)", printed, re.MULTILINE)) == 2
    assert re.findall(r"\(pid \d+\), plan (\w+)", printed) == [plan, plan]


def test_the_demo_shows_its_plans_a_server_and_a_refit(tmp_path):
    done = subprocess.run(
        [sys.executable, str(_SCRIPTS / "demo.py"), "--output", "demo.json"],
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "TORCHDYNAMO_DISABLE": "1"},
    )

    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))
    log = result["server"]["log"]
    assert "purpose rollout" in log[0]
    assert any(line.startswith("receipt: plan") and "engine.logprobs_mode = processed_logprobs" in line for line in log)
    assert result["server"]["text"]
    states = [{verdict["id"]: verdict["state"] for verdict in plan["verdicts"]} for plan in result["plans"]]
    assert states[0]["gemma-normalizer-dummy-load"] == "dormant"
    assert {refusal["kind"] for refusal in result["plans"][1]["refusals"]} == {"require", "refuse"}
    assert states[2]["cpu-moe-expert-parallel"] == "active"
    assert states[3]["gemma4-layer-scalar"] == "active"
    assert result["mean_logprob"]["after_refit"] > result["mean_logprob"]["before_refit"]
    assert len(result["receipt"]["processes"]) == 2
