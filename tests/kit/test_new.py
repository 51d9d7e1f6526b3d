"""``quirks new``: the package that it makes is complete, and its tests pass as they are."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

Quirks = Callable[..., Any]
Python = Callable[..., subprocess.CompletedProcess[str]]

FILES = [
    ".gitignore",
    "README.md",
    "pyproject.toml",
    "src/acme_quirks/__init__.py",
    "src/acme_quirks/example.py",
    "tests/test_example.py",
]


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Runs Python in an environment of its own, which sees ours through a .pth file and needs no network."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv"), "platbase": str(tmp_path / "venv")}))
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (own / "ours.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in ours), encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MODEL_QUIRKS_", "PYTEST_", "PYTHON"))}

    def run(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
        command: Sequence[str | Path] = [tmp_path / "venv" / "bin" / "python", *arguments]
        return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize("quirk_id", [None, "acme-quirks/class.2b"], ids=["as it is", "with an id"])
def test_the_tests_of_a_new_package_pass_as_generated(
    quirks: Quirks, python: Python, tmp_path: Path, quirk_id: str | None
) -> None:
    folder = tmp_path / "acme-quirks"
    made = quirks("new", "acme-quirks", "--folder", folder, *(["--id", quirk_id] if quirk_id else []))
    installed = python("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", ".", folder=folder)

    tested = python("-m", "pytest", "-q", folder=folder)
    validated = python("-m", "quirks_core.cli", "validate", "acme-quirks", "--json", folder=folder)
    listed = python("-m", "quirks_core.cli", "list", "--json", folder=folder)

    assert made.code == 0
    assert installed.returncode == 0, installed.stderr
    assert tested.returncode == 0, tested.stdout
    assert "15 passed" in tested.stdout
    assert validated.returncode == 0, validated.stdout
    assert '"findings": []' in validated.stdout
    assert f'"{quirk_id or "acme-quirks/example"}"' in listed.stdout


def test_the_tests_of_a_new_package_fail_when_its_quirk_is_changed(quirks: Quirks, python: Python, tmp_path: Path) -> None:
    folder = tmp_path / "acme-quirks"
    quirks("new", "acme-quirks", "--folder", folder)
    source = folder / "src" / "acme_quirks" / "example.py"
    source.write_text(source.read_text().replace('Default("engine.enforce_eager", True)', 'Default("engine.dtype", "auto")'))
    python("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", ".", folder=folder)

    tested = python("-m", "pytest", "-q", folder=folder)

    assert tested.returncode == 1
    assert "test_example_models_run_eagerly" in tested.stdout


def test_the_files_and_the_next_steps_are_shown(quirks: Quirks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    outcome = quirks("new", "Acme_Quirks")

    assert outcome.code == 0
    assert sorted(str(file.relative_to("acme-quirks")) for file in Path("acme-quirks").rglob("*") if file.is_file()) == FILES
    assert [line.strip() for line in outcome.out.splitlines()[: len(FILES)]] == [f"acme-quirks/{name}" for name in FILES]
    for step in ("cd acme-quirks", "pip install .", "pytest", "quirks validate acme-quirks"):
        assert f"\n  {step}\n" in outcome.out


def test_json_lists_the_files(quirks: Quirks, tmp_path: Path) -> None:
    outcome = quirks("new", "acme-quirks", "--folder", tmp_path / "deep" / "er", "--json")

    assert outcome.json == {"folder": str(tmp_path / "deep" / "er"), "id": "acme-quirks/example", "files": FILES}


def test_no_placeholder_is_left_in_any_file(quirks: Quirks, tmp_path: Path) -> None:
    quirks("new", "acme-quirks", "--folder", tmp_path / "made")

    texts = [file.read_text(encoding="utf-8") for file in (tmp_path / "made").rglob("*") if file.is_file()]

    assert not [text for text in texts if "$package" in text or "$id" in text or "${" in text or "$$" in text]


def test_the_files_are_well_formatted(quirks: Quirks, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    quirks("new", "acme-quirks", "--folder", folder)
    ruff = [sys.executable, "-m", "ruff"]

    form = subprocess.run([*ruff, "format", "--isolated", "--line-length", "128", "--check", "."], cwd=folder, check=False)
    lint = subprocess.run(
        [*ruff, "check", "--isolated", "--line-length", "128", "--select", "E,F,I,UP", "."], cwd=folder, check=False
    )

    assert (form.returncode, lint.returncode) == (0, 0)


@pytest.mark.parametrize("name", ["", "-", "acme quirks", "../acme", "acme/quirks", "Ünder", "acme-", "acme$x"])
def test_a_name_that_no_distribution_can_have_is_refused(quirks: Quirks, tmp_path: Path, name: str) -> None:
    outcome = quirks("new", "--folder", tmp_path / "made", "--", name)

    assert outcome.code == 2
    assert "is no name of a distribution" in outcome.err
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["json", "class", "3d-quirks", "worker", "quirks-core", "model-quirks", "pytest"])
def test_a_name_that_python_cannot_import_or_that_is_taken_is_refused(quirks: Quirks, tmp_path: Path, name: str) -> None:
    outcome = quirks("new", name, "--folder", tmp_path / "made")

    assert outcome.code == 2
    assert "cannot be used" in outcome.err
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("quirk_id", "words"),
    [
        ("Not An Id", "the id must be lower-case words"),
        ("acme-quirks/one/two", "the id must be lower-case words"),
        ("others/one", "what stands before the slash is the distribution's name, 'acme-quirks'"),
        ("gemma4-layer-scalar", "is taken by model-quirks 0.1.0; try 'acme-quirks/gemma4-layer-scalar'"),
    ],
)
def test_an_id_that_cannot_be_used_is_refused(quirks: Quirks, tmp_path: Path, quirk_id: str, words: str) -> None:
    outcome = quirks("new", "acme-quirks", "--folder", tmp_path / "made", "--id", quirk_id)

    assert outcome.code == 2
    assert words in outcome.err
    assert not (tmp_path / "made").exists()


def test_a_folder_in_use_is_left_alone(quirks: Quirks, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()

    codes = [quirks("new", "acme-quirks", "--folder", tmp_path / name).code for name in ("used", "file", "file/below", "empty")]

    assert codes == [2, 2, 2, 0]
    assert [file.name for file in (tmp_path / "used").iterdir()] == ["mine.txt"]
    assert (tmp_path / "file").read_text() == "mine"
