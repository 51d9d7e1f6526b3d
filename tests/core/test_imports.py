"""Deciding needs none of the heavy packages, and the core nothing of those who build on it."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENGINES = ("ray", "torch", "transformers", "vllm")
EVERY_MODULE = """
import importlib, pkgutil, quirks_core
names = [found.name for found in pkgutil.walk_packages(quirks_core.__path__, "quirks_core.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
assert {"quirks_core.cli.main", "quirks_core.bootstrap", "quirks_core.testing.contract"} <= set(names)
"""
A_PLAN = """
import json, pathlib, sys, tempfile
from quirks_core.configuration.config import GenerationConfig
from quirks_core.plugins.planning import make_plan
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "config.json").write_text(json.dumps({"model_type": "gemma3"}))
    assert len(make_plan(GenerationConfig.parse({"model": folder}), environ={}).verdicts) > 20
"""


@pytest.mark.parametrize(
    ("packages", "program"),
    [
        ((*ENGINES, "worker", "quirks_plugins"), EVERY_MODULE),
        (ENGINES, "import worker"),
        ((*ENGINES, "worker"), A_PLAN),
    ],
    ids=["every module of the core", "the worker", "a plan with all built-in quirks"],
)
def test_what_decides_runs_without_engines(packages, program):
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({packages!r}))\n"  # importing them is an error

    done = subprocess.run([sys.executable, "-c", blocked + program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
