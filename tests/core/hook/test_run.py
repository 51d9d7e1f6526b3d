"""``quirks run`` up to the command: what it sets, what it refuses, and what it makes of the command's end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from patience import HUNG_S, until

SHOW = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith(('MODEL_QUIRKS', 'VLLM_'))}))"


@pytest.fixture
def run(shell):  # noqa: ARG001 - for its effect
    """Runs the command line in a process of its own, which the command may replace."""

    def start(*arguments, **environment):
        command = [sys.executable, "-m", "quirks_core.cli", "run", *map(str, arguments)]
        environ = {**os.environ, **environment}
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    return start


def test_the_command_gets_the_variables_of_the_hook(run, tmp_path):
    options = ["--purpose", "rollout", "--set", "refit.scope=parameters", "--set", "engine.seed=3"]
    options += ["--receipt", str(tmp_path / "r.json"), "--disable", "double-bos"]
    environment = {"MODEL_QUIRKS_SET": "sampling.top_p=0.5;engine.seed=2;", "MODEL_QUIRKS_DISABLE": "lora"}

    ended = run(*options, "--", sys.executable, "-c", SHOW, VLLM_PLUGINS="lora", **environment)

    assert json.loads(ended.stdout) == {
        "MODEL_QUIRKS": "on",
        "MODEL_QUIRKS_DISABLE": "lora,double-bos",
        "MODEL_QUIRKS_RECEIPT": str(tmp_path / "r.json"),
        "MODEL_QUIRKS_SET": "sampling.top_p=0.5;purpose=rollout;refit.scope=parameters;engine.seed=3",
        "VLLM_PLUGINS": "lora,model_quirks,model_quirks_transfer",
    }


def test_run_behaves_like_the_command_that_it_starts(run):
    ended = run("--report", "--", sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "--json", "--", "-x")

    assert (ended.returncode, ended.stdout) == (7, "['--json', '--', '-x']\n")


def test_a_hook_that_is_off_is_an_error(run):
    assert "MODEL_QUIRKS=off turns off what 'quirks run' is for" in run("--", "true", MODEL_QUIRKS="off").stderr


def test_a_signal_ends_the_command_with_a_report(run, tmp_path):  # noqa: ARG001 - for its environment
    ready = tmp_path / "ready"
    text = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    command = [sys.executable, "-m", "quirks_core.cli", "run", "--require-receipt", "--", sys.executable, "-c", text]
    parent = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until(ready.exists, "the start of the command")

    parent.send_signal(signal.SIGTERM)
    _, error = parent.communicate(timeout=HUNG_S)

    assert parent.returncode == 128 + signal.SIGTERM
    assert "no engine of" in error
