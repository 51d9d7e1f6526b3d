"""The command line on a real engine, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from patience import HUNG_S

from quirks_core.cli import main

_QUIRKS = (sys.executable, "-m", "quirks_core.cli")


@pytest.mark.usefixtures("worker_in_core", "forked")
def test_generate_prints_texts_plan_and_receipt_as_json(checkpoint, capfd):
    settings = ["engine.enforce_eager=true", "engine.dtype=float32", "engine.max_model_len=128", "sampling.max_new_tokens=8"]
    options = [word for setting in settings for word in ("--set", setting)]

    code = main(["generate", "--json", "--greedy", "--model", str(checkpoint("qwen3")), *options, "Hello", "one two"])

    printed = capfd.readouterr()
    assert code == 0, printed.err
    result = json.loads(printed.out)
    assert len(result["texts"]) == 2
    assert {ack["digest"] for ack in result["receipt"]["processes"]} == {result["plan"]["digest"]}
    assert len(result["receipt"]["processes"]) == 2


def test_the_demo_shows_its_plans_a_server_and_a_refit(tmp_path):
    done = subprocess.run(
        [*_QUIRKS, "demo", "--json"],
        capture_output=True,
        text=True,
        timeout=HUNG_S,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "TORCHDYNAMO_DISABLE": "1"},
    )

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
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
