"""The scheduled check, and the same by hand: the commands that they run are commands that there are."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import yaml

from quirks_core.cli.main import make_parser

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
