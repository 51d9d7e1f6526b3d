"""A trainer's own ``worker.py`` where Python looks first: what imports our package of that name says so, and the rest works."""

from __future__ import annotations

import json
import tomllib
from functools import partial
from pathlib import Path

import pytest
from programs import run_python

from quirks_core.apply.handed_down import FOLDER_VARIABLE, HOOK_VARIABLE, PLAN_VARIABLE
from quirks_core.facts.installation import in_the_way
from quirks_core.plan.records import ProcessPlan

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trainer(tmp_path):
    """A trainer's module of its own that cannot be imported without an effect."""
    file = tmp_path / "trainer" / "worker.py"
    file.parent.mkdir()
    file.write_text("print('the trainer speaks')\nclass VllmWorker: ...\n", encoding="utf-8")
    return file


@pytest.fixture
def python(trainer):
    """Runs Python in the trainer's folder, which is first on its path."""
    return partial(run_python, cwd=trainer.parent)


def test_a_command_that_needs_our_worker_fails_with_one_line(python, trainer):
    done = python("-m", "quirks_core.cli", "audit", "--model", ".")

    line = " ".join(done.stderr.split())  # a terminal may wrap it
    assert (done.returncode, done.stdout) == (2, "")
    assert line.startswith("error: 'quirks audit' cannot be loaded from worker.lab.cli.audit:COMMAND: ")
    assert f"{trainer!s} is imported as 'worker' instead of" in line
    assert "rename it" in line


def test_the_doctor_reports_the_file_that_hides_our_worker(python, trainer):
    on_path, beside = (python(*safe, "-m", "quirks_core.cli", "doctor", "--json") for safe in ([], ["-P"]))

    for done, code, level in ((on_path, 1, "error"), (beside, 0, "note")):
        (finding,) = [finding for finding in json.loads(done.stdout)["findings"] if finding["subject"] == "worker"]
        assert (done.returncode, finding["level"], str(trainer) in finding["message"]) == (code, level, True)


def test_a_process_of_a_workers_engine_does_not_start_with_it(python, trainer, tmp_path):
    plan = ProcessPlan(context="c").model_dump_json()
    (tmp_path / "run").mkdir()
    variables = {PLAN_VARIABLE: plan, FOLDER_VARIABLE: str(tmp_path / "run"), HOOK_VARIABLE: "rollout"}

    done = python("-c", "from quirks_core import bootstrap; bootstrap.bootstrap()", **variables)

    assert done.returncode == 1
    assert f"HiddenPackageError: {trainer!s} is imported" in done.stderr.splitlines()[-1]


def test_an_engine_without_a_plan_starts_without_our_transfer(python, trainer):
    done = python("-c", "from quirks_plugins.vllm_hook import register_transfer; register_transfer(); print('registered')")

    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (0, "registered\n")
    assert line.startswith(f"{trainer!s} is imported as 'worker'")


def test_a_trainer_s_own_tests_import_its_own_worker(python, trainer):
    test = trainer.with_name("test_own.py")
    test.write_text("def test_own():\n    import worker\n    assert worker.VllmWorker\n", encoding="utf-8")

    ours = ["-p", "quirks_core.testing.plugin", "-p", "quirks_plugins.fixtures"]
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", *ours, test)

    assert (done.returncode, "1 passed" in done.stdout) == (0, True)


def test_no_entry_point_that_others_load_is_in_our_worker():
    """A trainer's own package of that name can hide it."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]

    assert points.keys() == {"model_quirks", "model_quirks.commands", "vllm.general_plugins"}  # and none of pytest's
    assert [value for value in points["vllm.general_plugins"].values() if value.startswith("worker")] == []


def test_only_a_package_of_another_is_in_the_way(tmp_path):
    (tmp_path / "worker").mkdir()
    assert (in_the_way(), in_the_way(ROOT), in_the_way(tmp_path)) == (None, None, None)  # a mere folder is none

    (tmp_path / "worker" / "__init__.py").touch()

    assert str(in_the_way(tmp_path)) == str(tmp_path / "worker")
