"""All wheels, without an engine: what cannot run says what is missing, and everything else works."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from installed import needs_vllm
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from quirks_core.facts.installation import needs

PROJECT = "model-quirks"
ROOT = Path(__file__).parents[2]
RUN = "import sys; sys.path.append(sys.argv.pop(1)); from quirks_core.cli import main; sys.exit(main())"
ENGINE = "pip install 'model-quirks[cpu]' (or [cuda])"


def needed():
    """The distributions that the wheel alone brings."""
    names, found = [PROJECT], {}
    while names:
        if (name := canonicalize_name(names.pop())) not in found:
            found[name] = distribution(name)
            needs = map(Requirement, found[name].requires or ())
            names += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found.values()


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """Runs ``quirks`` with nothing on the path but Python's own library and what the wheel alone brings."""
    site = tmp_path_factory.mktemp("light")
    for item in needed():
        for top in {file.parts[0] for file in item.files if file.parts[0] not in ("..", "__pycache__")}:
            if "__editable__" not in top:
                (site / top).symlink_to(Path(item.locate_file(top)).resolve())
    for package in ("quirks_core", "quirks_plugins", "worker"):
        if not (site / package).exists():  # of an editable installation
            (site / package).symlink_to(ROOT / package)

    def run(*arguments):
        command = [sys.executable, "-S", "-P", "-c", RUN, str(site), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def folder(tmp_path):
    """A model's folder."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 8}', encoding="utf-8")
    (tmp_path / "model.safetensors").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["prove", "gemma4-layer-scalar"], f"vllm is not installed: {ENGINE}; the evidence of gemma4-layer-scalar needs it"),
        (["prove", "--all"], f"vllm is not installed: {ENGINE}"),
        (["audit", "--model", "."], f"torch is not installed: {ENGINE}"),
        (["parity", "--model", "."], "numpy is not installed: pip install 'model-quirks[cpu,parity]' (or [cuda,parity])"),
        (
            ["migrate", "--from", "0.30", "--to", "0.31", "--model", "."],
            "numpy is not installed: pip install 'model-quirks[cpu,",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_that_lacks_a_package_names_the_extra_for_it(light, folder, command, message):
    command = [str(folder) if word == "." else word for word in command]

    done, as_json = light(*command), light(*command, "--json")

    assert (done.returncode, as_json.returncode) == (2, 2)
    assert done.stderr.splitlines()[-1].startswith(f"error: this command cannot run here: {message}")
    assert "Traceback" not in done.stderr
    assert message in json.loads(as_json.stdout)["error"]


def test_the_doctor_says_once_that_there_is_no_engine(light):
    done = light("doctor", "--json")

    findings = json.loads(done.stdout)["findings"]
    (note,) = [finding["message"] for finding in findings if finding["level"] != "ok"]
    assert done.returncode == 0
    assert note.startswith("no engine here, so that ")
    assert note.endswith(ENGINE)
    assert any(finding["message"].endswith("quirks loaded, 0 plugins broken") for finding in findings)


def test_without_an_engine_the_newest_release_is_assumed(light, folder):
    """A default wheel is a CUDA build; explain assumes what plan does."""
    (folder / "config.json").write_text('{"model_type": "gemma4"}', encoding="utf-8")

    planned, explained = light("plan", "--model", folder), light("explain", "gemma4-layer-scalar", "--model", folder)
    other = light("plan", "--model", folder, "--assume", "vllm==0.30", "--assume", "cpu==avx2")

    assert (
        "; vllm 0.33 (assumed: none is installed), platform cuda (assumed), platform.gpu.capability 90 (assumed)\n"
        in planned.stdout
    )
    assert re.search(r"^  gemma4-layer-scalar +Dummy weights", planned.stdout, re.M)
    assert "undecided" not in planned.stdout
    assert planned.stdout.count("not checked") == 1
    assert explained.stdout.startswith("gemma4-layer-scalar (workaround) applies\n")
    assert "; vllm 0.30 (assumed: none is installed), platform cpu (assumed)" in other.stdout


def test_a_misspelt_slot_is_an_error_without_an_engine_too(light, folder):
    done = light("plan", "--model", folder, "--set", "engine.enforce_eagre=true")

    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'engine.enforce_eager'" in done.stderr


@needs_vllm
@pytest.mark.parametrize(
    ("module", "engine", "remedy"),
    [
        ("matplotlib.figure", False, "pip install 'model-quirks[parity]'"),
        ("ray", False, "pip install 'model-quirks[ray]'"),
        ("zmq", False, "pip install 'model-quirks[cpu]' (or [cuda], [train])"),
        ("acme", False, "pip install acme"),
        ("acme", True, "pip install acme"),
    ],
)
def test_the_remedy_for_a_missing_module_is_its_extra(monkeypatch, module, engine, remedy):
    monkeypatch.setattr("quirks_core.facts.installation._is_there", lambda _: False)

    assert needs(ModuleNotFoundError(name=module), engine=engine) == f"{module.partition('.')[0]} is not installed: {remedy}"


@needs_vllm
@pytest.mark.parametrize("module", ["vllm.no_such_module", "json", "worker.no_such_module", None])
def test_a_module_that_an_installed_package_lacks_has_no_remedy(module):
    assert needs(ModuleNotFoundError(name=module), engine=True) is None
