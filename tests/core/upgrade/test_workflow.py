"""The scheduled check, and the same by hand: the commands that they run are commands that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from quirks_core.cli.main import make_parser

ROOT = Path(__file__).parents[3]


def workflow(name):
    """A workflow, as it is written."""
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))


def steps(name):
    """The steps of all jobs of a workflow."""
    return [step for job in workflow(name)["jobs"].values() for step in job["steps"]]


def test_the_workflow_checks_the_catalogue():
    (script,) = [step["run"] for step in steps("upgrade-check") if "quirks upgrade" in step.get("run", "")]
    (command,) = re.findall(r"quirks (upgrade .*?) >", script)
    options = make_parser("upgrade").parse_args(shlex.split(command.replace("$TO", "0.33")))

    assert (options.catalogue, options.to, options.markdown) == (True, "0.33", True)
    assert workflow("upgrade-check")["permissions"] == {"contents": "read", "issues": "write"}


def test_the_reusable_workflow_installs_its_own_commit():
    inputs = workflow("upgrade-report")[True]["workflow_call"]["inputs"]  # YAML reads "on" as true
    _, own = [step["with"] for step in steps("upgrade-report") if "checkout" in step.get("uses", "")]

    assert inputs.keys() == {"run", "pin", "to", "install"}
    assert (own["repository"], own["ref"]) == ("${{ job.workflow_repository }}", "${{ job.workflow_sha }}")
    assert inputs["install"]["default"] == f"./{own['path']}[upgrade]"


@pytest.mark.parametrize("name", ["upgrade-report", "upgrade-check", "ci"])
def test_actions_of_the_workflows_are_pinned_by_their_commit(name):
    used = [step["uses"] for step in steps(name) if "uses" in step]

    assert used
    assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)] == []
