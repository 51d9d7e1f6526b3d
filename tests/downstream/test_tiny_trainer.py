"""A trainer's repository in small, with a pin, three runs and two patches, and what a clone of this one does for it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from installations import ROOT, copy_checkout

from tests.downstream.conftest import Environment

TARGET = "0.33.0"
COMMIT = """
git init -q && git add -A
git -c user.name=a -c user.email=a@localhost commit -qm before
git rev-parse HEAD
"""
PATCHES = "--patches tiny_trainer --assume platform==cuda"


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The files of this repository, as git has them or would."""
    return copy_checkout(tmp_path_factory.mktemp("clone"))


@pytest.fixture(scope="module")
def environment(installed, clone):
    """An environment into which pip installed the clone; what the package depends on is there."""
    found = installed("zeta-quirks")  # of its own; that package changes nothing here
    found.pip("install", "--no-index", "--no-deps", "--no-build-isolation", clone)
    return found


@pytest.fixture
def trainer(environment, tmp_path):
    """The trainer's repository, and the same environment in it."""
    folder = tmp_path / "trainer"
    shutil.copytree(ROOT / "tests" / "downstream" / "tiny-trainer", folder)
    return Environment(environment.python, folder, {"PATH": f"{environment.python.parent}:{os.environ['PATH']}"})


def test_every_run_of_a_file_has_its_verdict(trainer):
    done = trainer.quirks("upgrade", "--runs", "quirks.yaml", "--to", TARGET, "--json")

    runs = done.json["runs"]
    assert {name: run["verdict"] for name, run in runs.items()} == {
        "rollout": "go, with these changes", "judge": "go, with these changes", "eval": "go",
        "patches": "stop",
    }  # fmt: skip
    assert {name: run["before"]["version"] for name, run in runs.items()} == {
        **dict.fromkeys(runs, "0.31.0"),
        "judge": "0.30.0",
    }
    assert (done.code, done.json["verdict"]) == (2, "stop")
    stops = [one for one in runs["patches"]["findings"] if one["level"] == "stop"]
    assert [one["subject"] for one in stops] == ["vllm.v1.core.kv_cache_utils.check_enough_kv_cache_memory"]
    schemas = Path(trainer.script("import json, quirks_core; print(json.dumps(quirks_core.__path__[0]))"), "schemas")
    jsonschema.validate(done.json, json.loads((schemas / "upgrade.json").read_text(encoding="utf-8")))


def test_the_hooks_of_pre_commit_run_in_the_trainers_repository(trainer, clone):
    """As pre-commit runs them: an environment with the clone, and the arguments of the trainer before those of the hook."""
    hooks = {hook["id"]: hook for hook in yaml.safe_load((clone / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))}
    (repository,) = yaml.safe_load((trainer.home / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    (trainer.home / "requirements.txt").write_text(f"vllm=={TARGET}", encoding="utf-8")  # a commit that changes the pin

    done = {}
    for used in repository["hooks"]:
        hook = {**hooks[used["id"]], **used}
        line = [*shlex.split(hook["entry"]), *hook["args"]]
        done[hook["id"]] = subprocess.run(
            line, cwd=trainer.home, capture_output=True, text=True, check=False, env={**os.environ, **trainer.variables}
        )

    assert all(hook["language"] == "python" and hook["pass_filenames"] is False for hook in hooks.values())
    assert {name: one.returncode for name, one in done.items()} == {"quirks-upgrade": 2, "quirks-plan": 0}
    assert "stop: patches: vllm 0.31.0 → vllm 0.33.0, 1 stop" in done["quirks-upgrade"].stdout


@pytest.mark.parametrize(
    ("run", "to", "pin", "code", "title"),
    [
        ("--runs quirks.yaml", TARGET, "", "2", "vllm 0.31.0 → vllm 0.33.0, vllm 0.30.0 → vllm 0.33.0: 4 runs"),
        (
            PATCHES,
            "",
            "vllm==0.33.0",
            "2",
            "vllm 0.31.0 → vllm 0.33.0: 2 patches of vLLM in tiny\\_trainer",
        ),
        (PATCHES, "", "vllm==0.31.0\ntorch==2", "0", None),
    ],
    ids=["schedule", "bump", "another pin"],
)
def test_the_workflow_opens_an_issue(trainer, clone, run, to, pin, code, title):
    """What its steps run, in the trainer's checkout; ``gh`` is a script that writes down what it is asked."""
    tools = trainer.home.parent / "tools"
    tools.mkdir()
    (tools / "gh").write_text(
        '#!/bin/sh\nif [ "$2" = create ]; then printf "%s\\n" "$@" > "$RUNNER_TEMP/asked"; fi\n', encoding="utf-8"
    )
    (tools / "gh").chmod(0o755)
    outputs = trainer.home.parent / "outputs"
    env = {
        **os.environ, "PATH": f"{tools}:{trainer.variables['PATH']}",
        "RUN": run, "PIN": "requirements.txt", "TO": to,
        "GITHUB_OUTPUT": str(outputs), "GITHUB_STEP_SUMMARY": str(tools / "summary"), "RUNNER_TEMP": str(tools),
    }  # fmt: skip
    workflow = yaml.safe_load((clone / ".github" / "workflows" / "upgrade-report.yml").read_text(encoding="utf-8"))
    steps = [step["run"] for step in workflow["jobs"]["report"]["steps"] if "run" in step and "pip" not in step["run"]]

    def step(script, **more):
        bash, variables = ["/bin/bash", "-e", "-c", script], {**env, **more}
        done = subprocess.run(bash, cwd=trainer.home, env=variables, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    before = step(COMMIT)
    if pin:
        (trainer.home / "requirements.txt").write_text(pin, encoding="utf-8")
    step(steps[0], BEFORE=before)
    found = dict(line.split("=", 1) for line in outputs.read_text(encoding="utf-8").splitlines())
    assert (found["code"], found.get("title")) == (code, title)
    if title:
        step(steps[1], TITLE=title)
        assert (tools / "asked").read_text(encoding="utf-8").splitlines() == [
            "issue", "create", "--title", title, "--body-file", "body.md",
        ]  # fmt: skip
        assert title in (trainer.home / "body.md").read_text(encoding="utf-8")
